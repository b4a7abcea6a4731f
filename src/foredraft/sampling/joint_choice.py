"""Tokens of several requests chosen at once: one reduction and one transfer for all, noise drawn for all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.sampling.noise import gumbel_rows, position_key
from foredraft.sampling.request_sampler import RequestSampler


def greedy_together(logits: Sequence[Tensor]) -> list[list[int]]:
    """The likeliest token of every row of each request's logits, [R, V] each."""
    return split(stacked(logits).argmax(-1).tolist(), logits)


def drawn_together(
    samplers: Sequence[RequestSampler], logits: Sequence[Tensor], depths: Sequence[list[int]]
) -> list[list[int]]:
    """As each of `samplers`, all of them plain, would draw from its rows of raw logits, [R, V] each, at its depths."""
    rows = stacked(logits)
    divisors = [sampler.divisor for sampler, own in zip(samplers, logits, strict=True) for _ in range(len(own))]
    if any(divisor != 1 for divisor in divisors):
        rows = rows / torch.tensor(divisors, device=rows.device)[:, None]
    noise = noise_together(samplers, depths, rows)
    return split((rows + noise).argmax(-1).tolist(), logits)


def noise_together(samplers: Sequence[RequestSampler], depths: Sequence[list[int]], like: Tensor) -> Tensor:
    """Noise of every row, [rows, V]; what no sampler has yet is computed in one pass, and they keep it."""
    places = [
        (sampler, len(sampler.history) + depth) for sampler, own in zip(samplers, depths, strict=True) for depth in own
    ]
    missing = {(id(s), position): (s, position) for s, position in places if position not in s.noise}
    if missing:
        keys = [position_key(sampler.seed, position) for sampler, position in missing.values()]
        fresh = gumbel_rows(torch.tensor(keys, device=like.device), like.shape[-1])
        for (sampler, position), row in zip(missing.values(), fresh, strict=True):
            sampler.noise[position] = row
        if len(missing) == len(places):
            return fresh
    return torch.stack([sampler.noise[position] for sampler, position in places])


def stacked(logits: Sequence[Tensor]) -> Tensor:
    """All rows, float32: torch's argmax over 16-bit rows is several times slower than this copy."""
    return (torch.cat(list(logits)) if len(logits) > 1 else logits[0]).float()


def split(tokens: list[int], logits: Sequence[Tensor]) -> list[list[int]]:
    rest = iter(tokens)
    return [[next(rest) for _ in range(len(own))] for own in logits]
