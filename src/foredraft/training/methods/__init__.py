"""One file a method: what its head learns from a batch, and how the head is kept."""
