"""The nouns everyone speaks."""
