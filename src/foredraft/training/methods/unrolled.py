"""Training-time test: a head runs on from its own hidden states, as it will when it drafts a chain (2503.01840).

Row i of a text pairs the target's features at i with token i + 1. Unroll j of row i reads token i + 1 + j and the
head's own state of unroll j - 1, and guesses token i + 2 + j, whose law is the target's at row i + 1 + j.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from foredraft.heads.layer import Attend
from foredraft.training.attends import UnrolledAttend
from foredraft.training.batches import Batch
from foredraft.training.losses import RowLoss
from foredraft.training.methods.lesson import Lesson, judge
from foredraft.training.methods.method import StepLosses, counts


class ChainHead(Protocol):
    """A head that drafts a chain by feeding its output back: EAGLE's and MTP's."""

    def fuse(self, features: Tensor) -> Tensor: ...

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor: ...

    def logits(self, out: Tensor) -> Tensor: ...

    def fed_back(self, out: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The rows from which some chain of a lesson starts, packed to the same number in every text.

    Attributes:
        rows: Row of each, [B, Q]; texts with fewer are filled up with other rows, which nobody reads.
        places: Where a row of a text stands among them, [B, T].
    """

    rows: Tensor
    places: Tensor

    @classmethod
    def of(cls, lesson: Lesson, shape: tuple[int, int], steps: int) -> "ChosenRows":
        texts, length = shape
        wanted = torch.zeros(texts, length, dtype=torch.bool, device=lesson.row.device)
        for back in range(1, steps + 1):
            starts = lesson.row - back
            wanted[lesson.text[starts >= 0], starts[starts >= 0]] = True
        most = max(1, int(wanted.sum(1).max()))
        rows = torch.argsort(wanted.to(torch.int8), dim=1, descending=True, stable=True)[:, :most]
        return cls(rows, wanted.cumsum(1) - 1)


def unrolled(head: ChainHead, features: Tensor, tokens: Tensor, chosen: ChosenRows, steps: int) -> Iterator[Tensor]:
    """The head's outputs at the chosen rows, [B, Q, hidden], unroll after unroll.

    `features` [B, T, ...] are the target's, `tokens` [B, T] the text's; row i reads feature i and token i + 1.
    """
    rows, last = chosen.rows, tokens.shape[1] - 1
    attend = UnrolledAttend(rows)
    positions = torch.arange(last, device=tokens.device)[None]
    out = head(tokens[:, 1:], head.fuse(features[:, :-1]), positions, attend)
    out = out.take_along_dim(rows[..., None], 1)
    yield out
    for step in range(1, steps):
        read = tokens.take_along_dim((rows + 1 + step).clamp(max=last), 1)
        out = head(read, head.fed_back(out), rows + step, attend)
        yield out


Beside = Callable[[Tensor, Lesson], Tensor]  # a further loss of predicted rows [R, hidden], summed over them


@dataclass(frozen=True, slots=True)
class ChainLoss:
    """The loss of an unrolled head.

    Attributes:
        criterion: Of each row.
        weights: Of each unroll; as many unrolls are trained.
        measured: Unrolls that are judged in evaluation.
        recompute: See `judge`.
    """

    criterion: RowLoss
    weights: tuple[float, ...]
    measured: int
    recompute: bool = False

    def over(
        self, head: ChainHead, features: Tensor, batch: Batch, lesson: Lesson, beside: Beside | None = None
    ) -> StepLosses:
        """The loss of a batch; `features` [B, T, ...] are what the head reads of the target."""
        steps = len(self.weights) if torch.is_grad_enabled() else max(self.measured, len(self.weights))
        tokens = batch.tokens
        chosen = ChosenRows.of(lesson, (tokens.shape[0], tokens.shape[1] - 1), steps)
        total, correct, counted = torch.zeros((), device=tokens.device), [], []
        for step, out in enumerate(unrolled(head, features, tokens, chosen, steps)):
            taught = lesson.from_row(1 + step)
            rows = out[taught.text, chosen.places[taught.text, taught.row - 1 - step]]
            judged = judge(head.logits, rows, taught, self.criterion, recompute=self.recompute)
            correct.append(judged.correct)
            counted.append((lesson.every[1] > step).sum())
            if step < len(self.weights):  # later ones are only measured
                total = total + self.weights[step] * (judged.loss + (beside(rows, taught) if beside else 0.0))
        return StepLosses(total=total, weight=counts(counted[:1])[0], correct=counts(correct), counted=counts(counted))
