"""One file for each group of paths."""
