"""Cache of a draft model whose positions are not the target's: slots of its own, a table for each request.

What a request has in its cache is told by its tokens alone: the next draft compares them with the text as it then is,
keeps what still stands and frees the rest. So it does not matter who drafted in between, or what became of the draft.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.request import Request
from foredraft.core.slots import compact
from foredraft.core.step_plan import StepPlan
from foredraft.model.slot_pool import SlotPool, SlotTable

CATCH_UP_ROWS = 512
NO_SLOT = -1  # the parent of a draft's first tokens


class Forward(Protocol):
    """What drafting needs of a draft model."""

    def forward(self, plan: StepPlan) -> Tensor:
        """Logits of the plan's wanted rows, [R, V]."""


@dataclass(kw_only=True, eq=False)
class CachedText:
    """One request's tokens in the draft model's cache.

    Attributes:
        table: Their slots; the tail holds those of the last draft.
        tokens: The text's tokens, a slot for each.
        filled: How many of them the draft model has run through.
        drafted: Slot of each drafted token that was run, by its parent's slot and its token.
    """

    table: SlotTable
    tokens: list[int] = field(default_factory=list)
    filled: int = 0
    drafted: dict[tuple[int, int], int] = field(default_factory=dict)

    def drafted_path(self, tokens: Iterable[int]) -> list[int]:
        """Slots of the first of `tokens`, as far as the last draft ran through them."""
        slots, slot = [], NO_SLOT
        for token in tokens:
            slot = self.drafted.get((slot, token))
            if slot is None:
                break
            slots.append(slot)
        return slots


class DraftCache:
    """A draft model and its cache.

    Attributes:
        model: The draft model, its layers attached to `pool`.
        pool: Slots of nobody else.
        expected: Slots a request may come to hold.
        texts: What each request has in the cache.
        promised: Slots that drafts under way may still take.
    """

    def __init__(self, model: Forward, pool: SlotPool, *, expected: int):
        self.model, self.pool, self.expected = model, pool, expected
        self.texts: dict[int, CachedText] = {}
        self.promised = 0

    def place(self, request: Request, tokens: list[int], scratch: int) -> CachedText | None:
        """Make `tokens` the request's text, with slots and `scratch` more for its draft; none where they lack.

        What the cache already holds of them stays, accepted drafts included; the last token is always run again, for
        its logits. Until `begin` the slots promised to other requests of the same step are left alone.
        """
        text = self.texts.get(request.id)
        if text is None:
            text = self.texts[request.id] = CachedText(table=self.pool.open(self.expected))
        self.settle(text, tokens)
        missing = len(tokens) - len(text.tokens)
        if missing + scratch > self.pool.free - self.promised:
            return None
        self.pool.keep(text.table, self.pool.take(text.table, missing))
        text.tokens = tokens
        self.promised += scratch
        return text

    def settle(self, text: CachedText, tokens: list[int]) -> None:
        """Keep what the cache holds of all but the last of `tokens`; free everything else, what was drafted too."""
        same = shared_length(text.tokens[: text.filled], tokens[:-1])
        path = text.drafted_path(tokens[same:-1]) if same == len(text.tokens) else []
        self.pool.keep(text.table, path)
        self.pool.release(text.table.slots[same + len(path) :])
        del text.table.slots[same + len(path) :]
        text.table.run = text.table.run or not text.table.slots
        text.tokens = tokens[: same + len(path)]
        text.filled, text.drafted = len(text.tokens), {}

    def begin(self, texts: list[CachedText]) -> Tensor:
        """Run what each text lacks, [requests, V]: logits after their last tokens."""
        self.promised = 0
        while behind := [text for text in texts if len(text.tokens) - text.filled > CATCH_UP_ROWS]:
            self.forward([self.missing_rows(text, CATCH_UP_ROWS, logits=0) for text in behind])
            for text in behind:
                text.filled += CATCH_UP_ROWS
        logits = self.forward([self.missing_rows(text, len(text.tokens) - text.filled, logits=1) for text in texts])
        for text in texts:
            text.filled = len(text.tokens)
        return logits

    def missing_rows(self, text: CachedText, count: int, *, logits: int) -> Rows:
        start, stop, slots = text.filled, text.filled + count, text.table.slots
        return self.rows(text.tokens[start:stop], slots[start:stop], slots[:start], logits)

    def row_after(self, text: CachedText, path: list[int], token: int) -> Rows:
        """A drafted token in the last slot of `path`, after the text and what is in the path's other slots."""
        return self.rows([token], path[-1:], text.table.slots + path[:-1], 1)

    def rows(self, tokens: list[int], slots: list[int], before: list[int], logits: int) -> Rows:
        return Rows(
            tokens=tokens,
            pending=len(tokens),
            parents=[],
            slots=slots,
            context=len(before),
            context_slots=compact(before, self.pool.device) if before else slice(0, 0),
            logits=logits,
        )

    def forward(self, rows: list[Rows]) -> Tensor:
        return self.model.forward(build_plan(rows, self.pool.device))

    def close(self, request: Request) -> None:
        """Free what the request holds."""
        text = self.texts.pop(request.id, None)
        if text is not None:
            self.pool.close(text.table)


def shared_length(first: list[int], second: list[int]) -> int:
    """How many tokens two lists begin with in common."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])
