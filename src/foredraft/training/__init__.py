"""Training of drafters: samples, the target's answers and states, batches, methods, one trainer."""
