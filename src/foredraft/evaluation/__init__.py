"""Measuring the engine from outside: what each drafter saves, against plain decoding in the same run."""
