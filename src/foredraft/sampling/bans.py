"""Processors that forbid tokens: fixed sets, token sequences, and early ends of text."""

from collections.abc import Iterable
from math import inf

import torch
from torch import Tensor

from foredraft.sampling.processor import Processor
from foredraft.sampling.tree_rows import NO_TOKEN, TreeRows


def mask_of(tokens: Iterable[int], width: int) -> Tensor:
    """True at `tokens`, bool [width]."""
    mask = torch.zeros(width, dtype=torch.bool)
    mask[list(tokens)] = True
    return mask


class TokenBan(Processor):
    """Forbids the same tokens everywhere."""

    def __init__(self, banned: Tensor):
        self.banned = banned  # [V] bool

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        self.banned = self.banned.to(scores.device)
        return scores.masked_fill(self.banned, -inf)


class SequenceBan(Processor):
    """Forbids the last token of a sequence wherever the text ends in the tokens before it.

    Sequences hold at least two tokens each.
    """

    def __init__(self, sequences: list[list[int]]):
        self.longest = max(map(len, sequences)) - 1
        padding = [[NO_TOKEN] * (self.longest + 1 - len(sequence)) for sequence in sequences]
        self.prefixes = torch.tensor([pad + sequence[:-1] for pad, sequence in zip(padding, sequences, strict=True)])
        self.last = torch.tensor([sequence[-1] for sequence in sequences])  # [W]

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        tails = rows.tails(self.longest)  # [R, L]
        matches = (tails[:, None, :] == self.prefixes) | (self.prefixes == NO_TOKEN)  # [R, W, L]
        row, sequence = matches.all(-1).nonzero(as_tuple=True)
        scores = scores.clone()
        scores[row.to(scores.device), self.last[sequence].to(scores.device)] = -inf
        return scores


class MinNewTokens(Processor):
    """Forbids the tokens that end a text until enough are written; spent from then on."""

    def __init__(self, minimum: int, endings: Iterable[int], width: int):
        self.missing = self.minimum = minimum
        self.endings = mask_of(endings, width)  # [V]

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        self.endings = self.endings.to(scores.device)
        early = (rows.written < self.minimum).to(scores.device)  # [R]
        return scores.masked_fill(early[:, None] & self.endings, -inf)

    def commit(self, tokens: list[int]) -> None:
        self.missing -= len(tokens)

    @property
    def spent(self) -> bool:
        return self.missing <= 0
