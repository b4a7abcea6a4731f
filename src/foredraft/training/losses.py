"""How far a drafter's logits are from its target's law, row by row.

Each loss takes logits [R, V] and a `Law` over the same V tokens, and gives [R] in fp32.
"""

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy as torch_cross_entropy

OUTSIDE = -1  # the token of a row whose text goes on with one the drafter cannot say


class Law:
    """The target's distribution at R rows, and the token each row's text goes on with.

    What a loss does not read is never made: a row of a large vocabulary is long.
    """

    def __init__(self, logits: Tensor, tokens: Tensor):
        """`logits` [R, V] in any float type; `tokens` [R]: their places among the V, or `OUTSIDE`."""
        self.logits, self.tokens = logits, tokens

    @property
    def width(self) -> int:
        return self.logits.shape[-1]

    @cached_property
    def log_probs(self) -> Tensor:
        return self.logits.log_softmax(-1, dtype=torch.float32)

    @cached_property
    def probs(self) -> Tensor:
        return self.logits.softmax(-1, dtype=torch.float32)

    @cached_property
    def negative_entropy(self) -> Tensor:
        """`sum p log p`, [R]."""
        return torch.einsum("rv,rv->r", self.probs, self.log_probs)

    def at(self, rows: Tensor) -> "Law":
        """The law of some of its rows, chosen by a mask or by ids."""
        return Law(self.logits[rows], self.tokens[rows])


RowLoss = Callable[[Tensor, Law], Tensor]


def forward_kl(logits: Tensor, law: Law) -> Tensor:
    """`KL(p || q) = sum p (log p - log q)` of the target's p and the drafter's q; the soft-label cross entropy less
    the entropy of p, so that 0 is a perfect drafter."""
    logits = logits.float()
    soft_label = logits.logsumexp(-1) - torch.einsum("rv,rv->r", law.probs, logits)
    return soft_label + law.negative_entropy


def reverse_kl(logits: Tensor, law: Law) -> Tensor:
    """`KL(q || p) = sum q (log q - log p)`."""
    log_q = logits.log_softmax(-1, dtype=torch.float32)
    return (log_q.exp() * (log_q - law.log_probs)).sum(-1)


def total_variation(logits: Tensor, law: Law) -> Tensor:
    """`1/2 sum |p - q|`: one less the acceptance rate of sampled drafts (Leviathan et al. 2023)."""
    return 0.5 * (law.probs - logits.softmax(-1, dtype=torch.float32)).abs().sum(-1)


def cross_entropy(logits: Tensor, law: Law) -> Tensor:
    """`-log q` of the token the text goes on with, 0 where the drafter cannot say it."""
    return torch_cross_entropy(logits.float(), law.tokens, ignore_index=OUTSIDE, reduction="none")


LOSSES: dict[str, RowLoss] = {"kl": forward_kl, "reverse_kl": reverse_kl, "tv": total_variation, "ce": cross_entropy}
