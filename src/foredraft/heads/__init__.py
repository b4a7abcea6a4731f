"""Networks of learned drafters: features and tokens in, hidden states and logits out. No cache, no choice of tokens."""
