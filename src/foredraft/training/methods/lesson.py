"""What the rows of a batch teach: the target's law wherever the next token is one that was written."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from foredraft.training.batches import Batch
from foredraft.training.losses import Law, RowLoss

CHUNK_ROWS = 1024  # target logits made at once before their columns are picked


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """The tokens a drafter may say.

    Attributes:
        known: Tokens of the target; its rows of logits past them are padding.
        size: Tokens of the drafter.
        ids: Target id of each, ascending, [size]; none where they are those of the target.
        places: Draft id of each target id, -1 for those it cannot say, [known]; none likewise.
    """

    known: int
    size: int
    ids: Tensor | None = None
    places: Tensor | None = None

    @classmethod
    def of(cls, ids: Tensor, known: int) -> "DraftVocabulary":
        places = torch.full((known,), -1, dtype=torch.int64, device=ids.device)
        places[ids] = torch.arange(len(ids), device=ids.device)
        return cls(known, len(ids), ids, places)

    def columns(self, logits: Tensor) -> Tensor:
        """Logits of its tokens, [..., size], of the target's, [..., V]."""
        return logits[..., : self.size] if self.ids is None else logits[..., self.ids]

    def draft_ids(self, tokens: Tensor) -> Tensor:
        return tokens if self.places is None else self.places[tokens]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows of a batch with what the target would write after them.

    Attributes:
        every: (text, row) of each row whose next token was written, [2, all].
        text, row: Those of them whose likeliest token the drafter can say, [R]: the rows that teach.
        law: The target's law over the draft vocabulary at these, and the draft id of the token that follows.
        best: Draft id of the target's likeliest token at these, [R].
    """

    every: Tensor
    text: Tensor
    row: Tensor
    law: Law
    best: Tensor

    def from_row(self, first: int) -> "Lesson":
        """Only rows from `first` on."""
        keep = self.row >= first
        if keep.all():
            return self
        return self.at(keep)

    def at(self, rows: Tensor) -> "Lesson":
        """Some of its rows, chosen by a mask or by their places."""
        return Lesson(self.every, self.text[rows], self.row[rows], self.law.at(rows), self.best[rows])


@torch.no_grad()
def lesson_of(batch: Batch, logits: Callable[[Tensor], Tensor], vocabulary: DraftVocabulary) -> Lesson:
    """The lesson of a batch; `logits` is the target's output layer over final hidden states [R, hidden]."""
    text, row = batch.written[:, 1:].nonzero(as_tuple=True)
    picked, likeliest = [], []
    for hidden in batch.final[text, row].split(CHUNK_ROWS):
        chunk = logits(hidden)[..., : vocabulary.known]
        likeliest.append(chunk.max(-1).indices)  # argmax of 16-bit rows is several times slower on CPUs
        picked.append(vocabulary.columns(chunk))
    if not picked:
        empty = batch.final.new_zeros(0, vocabulary.size)
        picked, likeliest = [empty], [row]
    best, columns = vocabulary.draft_ids(torch.cat(likeliest)), torch.cat(picked)
    following = vocabulary.draft_ids(batch.tokens[text, row + 1])
    known = best >= 0
    every = torch.stack([text, row])
    if known.all():
        return Lesson(every, text, row, Law(columns, following), best)
    return Lesson(every, text[known], row[known], Law(columns[known], following[known]), best[known])


@dataclass(frozen=True, slots=True)
class Judged:
    """Rows of one draft position, judged: sum of losses, rows that agree, and rows by rank where asked for."""

    loss: Tensor
    correct: Tensor
    ranks: Tensor | None = None


def judge(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    lesson: Lesson,
    criterion: RowLoss,
    *,
    recompute: bool = False,
    ranks: int = 0,
) -> Judged:
    """Compare `head` over rows [R, hidden] with the rows of a lesson.

    With `recompute` the logits are made again in the backward pass instead of being kept.
    """

    def compared(rows: Tensor) -> tuple[Tensor, ...]:
        logits = head(rows)[..., : lesson.law.width]
        seen = logits.detach()
        ranked = (ranks_of(seen, lesson.best, ranks),) if ranks else ()
        return criterion(logits, lesson.law).sum(), (seen.max(-1).indices == lesson.best).sum(), *ranked

    parts = checkpoint(compared, hidden, use_reentrant=False) if recompute else compared(hidden)
    return Judged(*parts)


def ranks_of(logits: Tensor, best: Tensor, ranks: int) -> Tensor:
    """How often `best` [R] is the likeliest, second likeliest, ... of logits [R, V], [ranks]."""
    likeliest = logits.topk(min(ranks, logits.shape[-1]), dim=-1).indices
    found = (likeliest == best[:, None]).sum(0)
    return torch.nn.functional.pad(found, (0, ranks - len(found)))
