"""Randomness that belongs to a text in a step: the same on any rank, in any micro-batch, after any resume."""

from collections.abc import Iterator
from zlib import crc32

import torch

from foredraft.sampling.noise import mixed_int
from foredraft.training.batches import Batch


def text_generators(seed: int, step: int, batch: Batch) -> Iterator[torch.Generator]:
    """A CPU generator for each text of a batch, seeded by `seed`, `step` and what the text holds."""
    for tokens, length in zip(batch.tokens.cpu(), batch.lengths.tolist(), strict=True):
        content = crc32(tokens[:length].numpy().tobytes())
        yield torch.Generator().manual_seed(mixed_int(mixed_int(mixed_int(seed) + step) + content) >> 1)
