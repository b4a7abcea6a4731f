"""A target without a network: a test double for engines and drafters."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from foredraft.core.slots import indices
from foredraft.core.step_plan import Segment, StepPlan
from foredraft.core.vocabulary import Vocabulary
from foredraft.model.capture import States
from foredraft.model.slot_pool import SlotPool

Law = Callable[[tuple[int, ...]], list[float]]


class ScriptedTarget:
    """Logits from a function of the whole history.

    Its cache holds the tokens themselves, one a slot, so a row's history is read back through slots and masks exactly
    as a model reads keys: a wrong slot, mask or position shows as wrong text.

    Attributes:
        law: From a history (token ids from the first on) to logits, [V].
        forwards: Rows of every forward so far.
    """

    def __init__(self, law: Law, *, vocabulary: int, context_length: int = 4096, slots: int = 4096, eos=()):
        self.name = "scripted"
        self.law = law
        self.vocabulary = Vocabulary(rows=vocabulary, size=vocabulary, eos_token_ids=tuple(eos))
        self.context_length = context_length
        self.pool = SlotPool(slots)
        self.tokenizer = None
        self.written = torch.full((slots,), -1)
        self.places = torch.full((slots,), -1)
        self.forwards: list[int] = []
        self.pool.groups["target"] = self  # so that the pool moves its rows as it moves keys and values
        self.keeps_drafts = True

    def move(self, source: list[int], target: list[int]) -> None:
        for store in (self.written, self.places):
            store[target] = store[source]

    def forward(self, plan: StepPlan, features: Sequence[int] = ()) -> tuple[Tensor, States]:
        """Logits of the wanted rows; a row's hidden state, at any boundary, is its position and its token."""
        self.written[plan.slots], self.places[plan.slots] = plan.tokens[0], plan.positions[0]
        self.forwards.append(len(plan.ids))
        wanted = set(plan.wanted)
        rows = [row for segment in plan.segments for row in self.rows(segment, wanted)]
        logits = torch.tensor(rows, dtype=torch.float32).view(-1, self.vocabulary.rows)
        return logits, {boundary: torch.stack([plan.positions[0], plan.tokens[0]], dim=1) for boundary in features}

    def rows(self, segment: Segment, wanted: set[int]) -> Iterator[list[float]]:
        """Logits of the segment's rows that are `wanted`, by their numbers in the pack."""
        slots = indices(segment.keys, torch.device("cpu"))
        tokens, places = self.written[slots].numpy(), self.places[slots].numpy()
        visible = segment.visible(None)
        for row in range(segment.rows):
            if segment.start + row in wanted:
                seen = slice(None) if visible is None else visible[row].numpy()
                assert places[seen].tolist() == list(range(len(places[seen]))), "a row sees positions out of order"
                yield self.law(tuple(tokens[seen].tolist()))
