"""The one loop: engine, scheduler, outputs."""
