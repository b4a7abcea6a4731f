"""Tokens in, logits out: loading, packed forward, attention, slot pool, device fast paths."""
