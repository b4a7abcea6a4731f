"""Processors that raise or lower scores: bias, repetition, presence and frequency."""

import torch
from torch import Tensor

from foredraft.sampling.processor import Processor
from foredraft.sampling.tree_rows import TreeRows


class LogitBias(Processor):
    """Adds a fixed bias to some tokens."""

    def __init__(self, bias: dict[int, float], width: int):
        self.bias = torch.zeros(width)  # [V]
        self.bias[list(bias)] = torch.tensor(list(bias.values()), dtype=torch.float32)

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        self.bias = self.bias.to(scores.device)
        return scores + self.bias


class CountingProcessor(Processor):
    """A penalty on a token's score that depends on how often the token was seen before.

    The committed tokens are counted once, and only seen tokens are touched.
    """

    def __init__(self, tokens: list[int], width: int):
        self.counts = torch.zeros(width)  # [V]; float32 is exact up to 2**24
        self.commit(tokens)

    def commit(self, tokens: list[int]) -> None:
        places = torch.tensor(tokens, dtype=torch.long, device=self.counts.device)
        self.counts.index_add_(0, places, torch.ones_like(places, dtype=torch.float32))

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        self.counts = self.counts.to(scores.device)
        seen = self.counts.nonzero()[:, 0]
        penalised = scores.clone()
        penalised[:, seen] = self.penalised(scores[:, seen], self.counts[seen])
        row, token, repeats = (part.to(scores.device) for part in rows.drafted)
        # From the raw score and the full count, so that a path gives the same bits as the same tokens committed.
        penalised[row, token] = self.penalised(scores[row, token], self.counts[token] + repeats)
        return penalised

    def penalised(self, scores: Tensor, counts: Tensor) -> Tensor:
        """New scores of the same shape for tokens seen `counts` times, each at least once."""
        raise NotImplementedError


class RepetitionPenalty(CountingProcessor):
    """Makes every token of prompt and output less likely (Keskar et al. 2019)."""

    def __init__(self, penalty: float, tokens: list[int], width: int):
        super().__init__(tokens, width)
        self.penalty = penalty

    def penalised(self, scores: Tensor, counts: Tensor) -> Tensor:
        return torch.where(scores < 0, scores * self.penalty, scores / self.penalty)


class OutputPenalty(CountingProcessor):
    """Presence and frequency penalties, which look at the output only."""

    def __init__(self, presence: float, frequency: float, width: int):
        super().__init__([], width)
        self.presence = presence
        self.frequency = frequency

    def penalised(self, scores: Tensor, counts: Tensor) -> Tensor:
        return scores - (counts * self.frequency + self.presence)
