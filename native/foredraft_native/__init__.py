"""Packed forwards of decoder models on a CPU; see `native/README.md` for what a program is made of."""

from foredraft_native._native import *  # noqa: F403
