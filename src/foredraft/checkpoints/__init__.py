"""Heads on disk: published formats read into one canonical form, and written from it."""
