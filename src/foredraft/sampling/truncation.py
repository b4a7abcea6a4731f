"""Processors that shape the law that is sampled: temperature, then what is cut off its tail."""

from math import inf, log

import torch
from torch import Tensor

from foredraft.sampling.processor import Processor
from foredraft.sampling.tree_rows import TreeRows

# Below it logits would overflow float32, while the law has long become the argmax.
LEAST_TEMPERATURE = 1e-20
# How many tokens are ranked at first and second try; a law so flat that they do not reach p has its whole row ranked.
FIRST_RANKED = (256, 4096)


class Temperature(Processor):
    """Divides by the temperature."""

    def __init__(self, temperature: float):
        self.divisor = max(temperature, LEAST_TEMPERATURE)

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        return scores / self.divisor


class TopK(Processor):
    """Keeps the k highest scores and what ties with the last of them (Fan et al. 2018)."""

    def __init__(self, k: int):
        self.k = k

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        least = scores.topk(min(self.k, scores.shape[-1])).values[:, -1:]  # [R, 1]
        return scores.masked_fill(scores < least, -inf)


class TopP(Processor):
    """Keeps the highest scores whose probability reaches p, and what ties with the last of them.

    Nucleus sampling (Holtzman et al. 2020).
    """

    def __init__(self, p: float):
        self.p = p

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        return scores.masked_fill(scores < -last_kept(-scores, scores.softmax(-1), self.p), -inf)


class MinP(Processor):
    """Keeps tokens at least `share` times as likely as the likeliest (Nguyen et al. 2024)."""

    def __init__(self, share: float):
        self.margin = log(share)

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        return scores.masked_fill(scores < scores.amax(-1, keepdim=True) + self.margin, -inf)


class TypicalP(Processor):
    """Keeps tokens by how near their surprise is to the entropy until they reach p (Meister et al. 2022)."""

    def __init__(self, p: float):
        self.p = p

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        surprise = -scores.log_softmax(-1)
        probabilities = torch.exp(-surprise)
        entropy = (surprise * probabilities).nansum(-1, keepdim=True)
        distances = (surprise - entropy).abs()  # [R, V]
        return scores.masked_fill(distances > last_kept(distances, probabilities, self.p), -inf)


def last_kept(ranks: Tensor, probabilities: Tensor, p: float) -> Tensor:
    """Rank of the last token needed when tokens are taken by rising rank until they reach probability p, [R, 1]."""
    width = ranks.shape[-1]
    for size in [*(size for size in FIRST_RANKED if size < width), width]:
        nearest, order = ranks.topk(size, largest=False)
        reached = probabilities.gather(-1, order).cumsum(-1)
        if (reached[:, -1] >= p).all():
            break
    needed = (reached[:, :-1] < p).sum(-1, keepdim=True)
    return nearest.gather(-1, needed)
