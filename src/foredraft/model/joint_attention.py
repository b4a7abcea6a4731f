"""Attention of many requests with few rows each in one call a layer: a gather costs less than a call for each of them.

Shapes: N segments of a bunch, each filled up to R rows and S keys, H query heads, G key-value heads, D head size.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from foredraft.core.step_plan import Segment, StepPlan
from foredraft.model.attending import Attending, attended
from foredraft.model.slot_pool import LayerGroup

LEAST = 4  # segments that are worth a gather
MOST_ROWS = 32  # of a segment: what has more, such as a chunk of a prompt, fills a call of its own
MOST_KEYS = 256  # of a segment on a CPU, where copying more costs more than calls do


@dataclass(kw_only=True, eq=False, slots=True)
class Bunch:
    """Segments of about the same number of rows.

    Attributes:
        rows: Their rows in the pack, each filled up by repeating its first, [N * R].
        slots: Cache slots they see, each filled up by slot 0, [N * S].
        seen: Which keys a row sees, [N, 1, R, S] bool; a row that only fills up sees some.
        own: Places of real rows among `rows`; none where all are real.
        whole: Whether `rows` are all rows of the pack in their order.
        biases: `seen` as 0 or -inf by repeats and type, made once.
    """

    rows: Tensor
    slots: Tensor
    seen: Tensor
    own: Tensor | None
    whole: bool
    biases: dict = field(default_factory=dict)

    def bias(self, repeat: int, dtype: torch.dtype) -> Tensor:
        """What is added to scores, the rows of query heads that share a key head one after another."""
        key = (repeat, dtype)
        if key not in self.biases:
            bias = torch.zeros(self.seen.shape, dtype=dtype, device=self.seen.device)
            self.biases[key] = bias.masked_fill_(~self.seen, float("-inf")).repeat(1, 1, repeat, 1)
        return self.biases[key]

    def write(self, out: Tensor, query: Tensor, attending: Attending, layers: LayerGroup) -> None:
        """Put the attention of its rows into `out` [T, H, Dv], for the `query` [1, H, T, D] of the whole pack."""
        mixed = self.attended(query, attending, layers)
        if self.whole:
            out.copy_(mixed)
        elif self.own is None:
            out.index_copy_(0, self.rows, mixed)
        else:
            out.index_copy_(0, self.rows[self.own], mixed.index_select(0, self.own))

    def attended(self, query: Tensor, attending: Attending, layers: LayerGroup) -> Tensor:
        """Attention of its rows, those that fill up included, [N * R, H, Dv]."""
        count, _, rows, _ = self.seen.shape
        stored = (layers.keys[attending.layer], layers.values[attending.layer])
        keys, values = (part.index_select(0, self.slots).unflatten(0, (count, -1)).transpose(1, 2) for part in stored)
        mine = query[0] if self.whole else query[0].index_select(1, self.rows)  # [H, N * R, D]
        folded = mine.unflatten(1, (count, rows)).transpose(0, 1)
        return attended(folded, keys, values, self.bias, attending).flatten(0, 1)


def bunches_of(plan: StepPlan, window: int | None) -> tuple[list[Bunch], list[Segment]]:
    """Segments that attend together in a layer of this window, and the rest; arranged once a plan.

    A layer whose window is narrower than what somebody sees lets everybody attend alone.
    """
    if len(plan.segments) < LEAST:
        return [], plan.segments
    if window is not None and any(segment.context + segment.rows > window for segment in plan.segments):
        return [], plan.segments
    if plan.arranged is None:
        plan.arranged = arranged(plan)
    return plan.arranged


def arranged(plan: StepPlan) -> tuple[list[Bunch], list[Segment]]:
    sizes: dict[int | None, list[Segment]] = {}
    for segment in plan.segments:
        sizes.setdefault(size_class(segment), []).append(segment)
    together = {size for size, its in sizes.items() if size is not None and len(its) >= LEAST}
    alone = [segment for segment in plan.segments if size_class(segment) not in together]
    return [bunch(sizes[size], 2**size, len(plan.segments)) for size in sorted(together)], alone


def size_class(segment: Segment) -> int | None:
    """The power of two its rows are filled up to; none for one that is too large to join others."""
    far = segment.device.type == "cpu" and segment.context + segment.rows > MOST_KEYS
    return None if far or segment.rows > MOST_ROWS else (segment.rows - 1).bit_length()


def bunch(segments: list[Segment], rows: int, count: int) -> Bunch:
    """Of some of a plan's `count` segments, filled up to `rows` rows, or less where all have as many less."""
    device = segments[0].device
    rows = min(rows, max(segment.rows for segment in segments))
    lengths = torch.tensor([[segment.rows, segment.context, segment.start] for segment in segments], device=device)
    own_rows, contexts, starts = lengths[:, :, None].unbind(1)  # [N, 1] each
    row = torch.arange(rows, device=device)
    real = row < own_rows  # [N, R]
    full = bool(real.all())
    key = torch.arange(int((own_rows + contexts).max()), device=device)
    seen = (key <= (contexts + row)[:, :, None]) & (key < (contexts + own_rows)[:, :, None])  # [N, R, S]
    for place, segment in enumerate(segments):
        if segment.seen is not None:
            reach = slice(segment.context, segment.context + segment.rows)
            seen[place, : segment.rows, reach] = segment.seen
    return Bunch(
        rows=(starts + torch.where(real, row, 0)).flatten(),
        slots=slots_of(segments, key).flatten(),
        seen=seen[:, None],
        own=None if full else real.flatten().nonzero()[:, 0],
        whole=full and len(segments) == count,
    )


def slots_of(segments: list[Segment], key: Tensor) -> Tensor:
    """Cache slots of each segment's keys, [N, S]."""
    runs = [segment.keys if isinstance(segment.keys, slice) else slice(0, 0) for segment in segments]
    bounds = torch.tensor([[run.start, run.stop] for run in runs], device=key.device)
    slots = bounds[:, :1] + key
    slots = torch.where(slots < bounds[:, 1:], slots, 0)
    for place, segment in enumerate(segments):
        if not isinstance(segment.keys, slice):
            slots[place, : len(segment.keys)] = segment.keys
    return slots
