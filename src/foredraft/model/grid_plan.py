"""A packed forward laid out on a grid of fixed size, so that a captured graph of it serves every plan that fits.

Nothing of it depends on what the plan says but numbers in two buffers: no shape, no branch, no copy from the host. What
fills the grid up is written to the storage's spare slot and read by nobody.

Shapes: N requests with R rows and S keys each, T = N R rows of the grid.
"""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class GridShape:
    """Sizes that plans are filled up to: requests, rows of each and keys of each, powers of two."""

    requests: int
    rows: int
    keys: int

    @property
    def size(self) -> int:
        return self.requests * self.rows


def shape_of(plan: StepPlan) -> GridShape | None:
    """The smallest grid that holds `plan`; none for one so large that filling it up costs more than launching it."""
    shape = GridShape(
        requests=power_of_two(len(plan.segments)),
        rows=power_of_two(max(segment.rows for segment in plan.segments)),
        keys=power_of_two(max(LEAST_KEYS, *(segment.context + segment.rows for segment in plan.segments))),
    )
    return shape if shape.size <= MOST_ROWS and shape.requests * shape.keys <= MOST_KEYS else None


def power_of_two(number: int) -> int:
    """The smallest one that is not below `number`."""
    return 1 << (number - 1).bit_length()


class GridPlan:
    """What a forward on the grid reads; stands in for the `StepPlan` that was put into it last.

    Attributes:
        shape: Of the grid.
        numbers: All integers of a plan, one after another, int64.
        sees: Which rows of its own request each row sees, [N, R, R] uint8.
        tokens, positions: Of all rows, [1, T].
        own_places: Positions by which a sliding window counts, [N, R].
        write: Slots the rows' keys and values go to, [T].
        logit_rows: Rows of the grid whose logits are wanted, in the plan's order and filled up, [T].
        rows: Row of the grid of each row of the plan, filled up, [T].
        contexts: Committed positions of each request, [N].
        slots: Cache slots each request sees, [N, S].
        bunches: How layers attend, by their window; made anew in each forward.
    """

    def __init__(self, shape: GridShape, spare: int, device: torch.device):
        """For storage whose slot `spare` nobody owns."""
        self.shape, self.spare = shape, spare
        size, count = shape.size, shape.requests
        parts = [size, size, size, size, size, size, count, count * shape.keys]
        self.host = np.zeros(sum(parts), dtype=np.int64)
        self.numbers = torch.zeros(sum(parts), dtype=torch.int64, device=device)
        self.sees = torch.zeros(count, shape.rows, shape.rows, dtype=torch.uint8, device=device)
        views = self.numbers.split(parts)
        self.tokens, self.positions = views[0][None], views[1][None]
        self.own_places = views[2].view(count, shape.rows)
        self.write, self.logit_rows, self.rows, self.contexts = views[3:7]
        self.slots = views[7].view(count, shape.keys)
        self.every_row = torch.arange(size, device=device)
        self.every_key = torch.arange(shape.keys, device=device)
        self.bunches: dict[int | None, Bunch] = {}

    def staged(self, plan: StepPlan) -> tuple[np.ndarray, np.ndarray]:
        """`numbers` and `sees` of `plan`, on the host; its scattered slots are still missing."""
        size, count = self.shape.size, self.shape.requests
        tokens, positions, own, write, wanted, rows = self.host[: 6 * size].reshape(6, size)
        contexts, slots = np.split(self.host[6 * size :], [count])
        self.host[:] = 0
        write[:] = slots[:] = self.spare
        sees = np.zeros((count, self.shape.rows, self.shape.rows), dtype=np.uint8)
        sees[:, :, 0] = 1  # a row that sees nothing at all would be no number
        places = self.places(plan)
        tokens[places], positions[places], write[places] = plan.ids, plan.places, plan.slots
        rows[: len(places)] = places
        wanted[: len(plan.wanted)] = places[plan.wanted]
        own[places] = [place for segment in plan.segments for place in segment.places]
        for index, segment in enumerate(plan.segments):
            contexts[index] = segment.context
            sees[index, : segment.rows, : segment.rows] = seen_rows(segment)
            if isinstance(segment.keys, slice):
                reach = segment.keys.stop - segment.keys.start
                slots.reshape(count, -1)[index, :reach] = np.arange(segment.keys.start, segment.keys.stop)
        return self.host, sees

    def places(self, plan: StepPlan) -> np.ndarray:
        """Row of the grid of each row of `plan`."""
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
        return self.bunches[attending.window].attended(query, attending, layers)[None]

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
        return Bunch(rows=self.every_row, slots=self.slots.flatten(), seen=seen[:, None], own=None, whole=True)


def seen_rows(segment: Segment) -> np.ndarray:
    """Which rows each row of a request sees, itself included, [rows, rows]."""
    if segment.ancestors is not None:
        return segment.ancestors.cpu().numpy()
    if segment.parents is None:
        return np.tri(segment.rows, dtype=np.uint8)
    return ancestor_mask(segment.parents, segment.rows).numpy()
