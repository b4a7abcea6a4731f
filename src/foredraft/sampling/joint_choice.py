"""Tokens of several requests chosen at once: one reduction and one transfer for all, noise drawn for all."""

from collections.abc import Sequence

import torch
from torch import Tensor

from foredraft.sampling.noise import choose, gumbel_rows, natively_chosen, position_keys
from foredraft.sampling.request_sampler import RequestSampler


def greedy_together(logits: Sequence[Tensor]) -> list[list[int]]:
    """The likeliest token of every row of each request's logits, [R, V] each."""
    if natively_chosen(logits[0]):
        return split(choose(list(logits)), [own.shape[0] for own in logits])
    return split(stacked(logits).argmax(-1).tolist(), [own.shape[0] for own in logits])


def drawn_together(
    samplers: Sequence[RequestSampler], logits: Sequence[Tensor], depths: Sequence[list[int]]
) -> list[list[int]]:
    """As each of `samplers`, all of them plain, would draw from its rows of raw logits, [R, V] each, at its depths."""
    sizes, divisors = list(map(len, depths)), divisors_together(samplers, depths)
    if natively_chosen(logits[0]):
        return split(choose(list(logits), divisors, keys_together(samplers, depths)), sizes)
    rows = stacked(logits)
    if divisors:
        rows = rows / torch.tensor(divisors, device=rows.device)[:, None]
    noise = noise_together(samplers, depths, rows)
    return split((rows + noise).argmax(-1).tolist(), sizes)


def divisors_together(samplers: Sequence[RequestSampler], depths: Sequence[list[int]]) -> list[float] | None:
    """What the logits of every row are divided by; none where that is 1."""
    if all([sampler.divisor == 1 for sampler in samplers]):
        return None
    return [sampler.divisor for sampler, own in zip(samplers, depths, strict=True) for _ in own]


def keys_together(samplers: Sequence[RequestSampler], depths: Sequence[list[int]]) -> list[int]:
    """What the noise of every row is made of."""
    seeds = [sampler.seed for sampler, own in zip(samplers, depths, strict=True) for _ in own]
    positions = [len(sampler.history) + depth for sampler, own in zip(samplers, depths, strict=True) for depth in own]
    return position_keys(seeds, positions)


def noise_together(samplers: Sequence[RequestSampler], depths: Sequence[list[int]], like: Tensor) -> Tensor:
    """Noise of every row, [rows, V]; what no sampler has yet is computed in one pass, and they keep it."""
    places = [
        (sampler, len(sampler.history) + depth) for sampler, own in zip(samplers, depths, strict=True) for depth in own
    ]
    missing = {(id(s), position): (s, position) for s, position in places if position not in s.noise}
    if missing:
        keys = position_keys([s.seed for s, _ in missing.values()], [position for _, position in missing.values()])
        fresh = gumbel_rows(torch.tensor(keys, device=like.device), like.shape[-1])
        for (sampler, position), row in zip(missing.values(), fresh, strict=True):
            sampler.noise[position] = row
        if len(missing) == len(places):
            return fresh
    return torch.stack([sampler.noise[position] for sampler, position in places])


def stacked(logits: Sequence[Tensor]) -> Tensor:
    """All rows, float32: torch's argmax over 16-bit rows is several times slower than this copy."""
    return (torch.cat(list(logits)) if len(logits) > 1 else logits[0]).float()


def split(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    rest = iter(tokens)
    return [[next(rest) for _ in range(size)] for size in sizes]
