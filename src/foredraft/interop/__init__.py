"""The outside world: transformers' `generate`."""
