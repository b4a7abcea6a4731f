"""A packed forward laid out on a grid of fixed size, so that a captured graph of it serves every plan that fits.

Nothing of it depends on what the plan says but numbers in two buffers: no shape, no branch, no copy from the host. What
fills the grid up is written to the storage's spare slot and read by nobody.

Only attention knows requests: it takes the rows of each to places of their own and brings them back. All else runs over
the rows as they are packed, or one request of many that has a draft would have all others filled up to it.

Shapes: T rows of N requests with at most R rows and S keys each, N R places.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foredraft.core.step_plan import Segment, StepPlan, ancestor_mask
from foredraft.model.attending import Attending
from foredraft.model.joint_attention import Bunch
from foredraft.model.slot_pool import LayerGroup

LEAST_KEYS = 128
MOST_ROWS, MOST_KEYS = 256, 2**16  # of all requests together
MOST_PAIRS = 2**22  # of a place and a key that are compared
WIDTHS = (1, 5, 17, 33, 65, MOST_ROWS)  # rows of a request that places are made for: mostly a root and its draft


@dataclass(frozen=True, kw_only=True, slots=True)
class GridShape:
    """Sizes that plans are filled up to.

    Attributes:
        size: Rows of all requests together, a power of two.
        requests: A power of two.
        rows: Those of each request: one of `WIDTHS`, or all there are.
        keys: Those of each request, a power of two.
    """

    size: int
    requests: int
    rows: int
    keys: int

    @property
    def places(self) -> int:
        return self.requests * self.rows

    @property
    def packed(self) -> bool:
        """Whether rows lie as attention takes them: each has the place of its number."""
        return self.requests == 1 or self.rows == 1


def shape_of(plan: StepPlan) -> GridShape | None:
    """The smallest grid that holds `plan`; none for one so large that filling it up costs more than launching it."""
    size, requests = power_of_two(len(plan.ids)), power_of_two(len(plan.segments))
    keys = power_of_two(max(LEAST_KEYS, *(segment.context + segment.rows for segment in plan.segments)))
    if size > MOST_ROWS or requests * keys > MOST_KEYS:
        return None
    widest = max(segment.rows for segment in plan.segments)
    rows = size if requests == 1 else min(WIDTHS[bisect_left(WIDTHS, widest)], size)
    shape = GridShape(size=size, requests=requests, rows=rows, keys=keys)
    return shape if shape.places * keys <= MOST_PAIRS else None


def power_of_two(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()


class GridPlan:
    """What a forward on the grid reads; stands in for the `StepPlan` that was put into it last.

    The plan's rows come first, in its order.

    Attributes:
        shape: Of the grid.
        numbers: All integers of a plan, one after another, int64.
        sees: Which rows of its own request each row sees, [N, R, R] uint8.
        tokens, positions: Of all rows, [1, T].
        write: Slots the rows' keys and values go to, [T].
        logit_rows: Rows whose logits are wanted, in the plan's order and filled up, [T].
        place_of: Place of each row, [T].
        row_at: Row at each place, filled up, [N R].
        own_places: Positions by which a sliding window counts, [N, R].
        contexts: Committed positions of each request, [N].
        slots: Cache slots each request sees, [N, S].
        bunches: How layers attend, by their window; made anew in each forward.
    """

    def __init__(self, shape: GridShape, spare: int, device: torch.device):
        """For storage whose slot `spare` nobody owns."""
        self.shape, self.spare = shape, spare
        count, rows, keys = shape.requests, shape.rows, shape.keys
        parts = [shape.size] * 5 + [shape.places] * 2 + [count, count * keys]
        self.host = np.zeros(sum(parts), dtype=np.int64)
        self.host_parts = np.split(self.host, np.cumsum(parts)[:-1])
        self.numbers = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        self.sees = torch.zeros(count, rows, rows, dtype=torch.uint8, device=device)
        tokens, positions, self.write, self.logit_rows, self.place_of, self.row_at, own, self.contexts, slots = (
            self.numbers.split(parts)
        )
        self.tokens, self.positions = tokens[None], positions[None]
        self.own_places, self.slots = own.view(count, rows), slots.view(count, keys)
        self.every_key = torch.arange(keys, device=device)
        self.bunches: dict[int | None, Bunch] = {}

    def staged(self, plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
        """`numbers` and `sees` of `plan`, on the host; its scattered slots are still missing."""
        tokens, positions, write, wanted, place_of, row_at, own, contexts, slots = self.host_parts
        self.host[:] = 0
        write[:] = slots[:] = self.spare
        sees = np.zeros((self.shape.requests, self.shape.rows, self.shape.rows), dtype=np.uint8)
        sees[:, :, 0] = 1  # a row that sees nothing at all would be no number
        count, places = len(plan.ids), self.places(plan)
        tokens[:count], positions[:count], write[:count], place_of[:count] = plan.ids, plan.places, plan.slots, places
        wanted[: len(plan.wanted)] = plan.wanted
        row_at[places] = np.arange(count)
        own[places] = [place for segment in plan.segments for place in segment.places]
        for index, segment in enumerate(plan.segments):
            contexts[index] = segment.context
            sees[index, : segment.rows, : segment.rows] = seen_rows(segment)
            if isinstance(segment.keys, slice):
                reach = segment.keys.stop - segment.keys.start
                slots.reshape(self.shape.requests, -1)[index, :reach] = np.arange(segment.keys.start, segment.keys.stop)
        return self.host, sees

    def places(self, plan: StepPlan) -> np.ndarray:
        """Place of each row of `plan`."""
        width = self.shape.rows
        return np.concatenate([np.arange(i * width, i * width + s.rows) for i, s in enumerate(plan.segments)])

    def scattered(self, plan: StepPlan) -> Iterator[tuple[Tensor, Tensor]]:
        """Where slots of requests go that do not lie in one run, and these."""
        for index, segment in enumerate(plan.segments):
            if not isinstance(segment.keys, slice):
                yield self.slots[index, : len(segment.keys)], segment.keys

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, attending: Attending, plan: "GridPlan", layers: LayerGroup
    ) -> Tensor:
        """As `attend_packed`: store the rows' keys and values, then attend, [1, T, H, Dv]."""
        layers.write(attending.layer, self.write, key[0], value[0])
        if attending.window not in self.bunches:
            self.bunches[attending.window] = self.bunch(attending.window)
        mixed = self.bunches[attending.window].attended(query, attending, layers)  # [N R, H, Dv]
        return (mixed if self.shape.packed else mixed.index_select(0, self.place_of))[None]

    def bunch(self, window: int | None) -> Bunch:
        """All requests, their rows seeing `window` positions back."""
        after = self.every_key - self.contexts[:, None]  # [N, S]: below 0 for the context, then the request's own rows
        row = after.clamp(0, self.shape.rows - 1)
        own = (after >= 0) & (after < self.shape.rows)
        among = self.sees.gather(2, row[:, None].expand(-1, self.shape.rows, -1)).bool()  # [N, R, S]
        seen = (after < 0)[:, None] | (own[:, None] & among)
        if window is not None:
            places = torch.where(after < 0, self.every_key, self.own_places.gather(1, row))  # of keys
            seen &= self.own_places[:, :, None] - places[:, None] < window
        slots, packed = self.slots.flatten(), self.shape.packed
        return Bunch(rows=self.row_at, slots=slots, seen=seen[:, None], own=None, whole=packed)


def seen_rows(segment: Segment) -> np.ndarray:
    """Which rows each row of a request sees, itself included, [rows, rows]."""
    if segment.ancestors is not None:
        return segment.ancestors.cpu().numpy()
    if segment.parents is None:
        return np.tri(segment.rows, dtype=np.uint8)
    return ancestor_mask(segment.parents, segment.rows).numpy()
