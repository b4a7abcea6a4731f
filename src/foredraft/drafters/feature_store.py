"""The target's features under the pool's own slots: what keeps, moves or frees a position's keys serves them too."""

import torch
from torch import Tensor

from foredraft.core.plan_builder import compact
from foredraft.core.request import Request
from foredraft.drafters.drafter import Observation
from foredraft.model.slot_pool import LayerShape, SlotPool


class FeatureStore:
    """One hidden state a committed position, as the drafter's head takes it.

    Attributes:
        known: Positions of each request whose hidden state is stored, counted from the first.
    """

    def __init__(self, pool: SlotPool, name: str, *, hidden_size: int, dtype: torch.dtype):
        self.pool = pool
        self.rows = pool.add_layers(name, {0: LayerShape(1, hidden_size, 0)}, dtype)
        self.known: dict[int, int] = {}

    def store(self, seen: Observation, fused: Tensor) -> None:
        """Keep the fused features [rows, hidden] of the rows one step has kept."""
        stop = seen.first + len(fused)
        slots = compact(seen.table.slots[seen.first : stop], self.pool.device)
        self.rows.keys[0][slots, 0] = fused
        self.known[seen.request.id] = stop

    def read(self, slots: list[int]) -> Tensor:
        """Fused features of committed slots, [len(slots), hidden]."""
        return self.rows.keys[0][compact(slots, self.pool.device), 0]

    def ready(self, request: Request) -> bool:
        """Whether every position before the root is known: a draft starts from the last of them."""
        return 0 < self.known.get(request.id, 0) == len(request.tokens) - 1

    def close(self, request: Request) -> None:
        self.known.pop(request.id, None)
