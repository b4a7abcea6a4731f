"""One file a method: propose and learn."""
