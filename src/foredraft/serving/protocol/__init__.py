"""What clients may ask, as they write it."""
