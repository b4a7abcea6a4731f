"""Acceptance rules over draft trees: accept, never draft."""
