"""The key-value cache: a pool of token slots, and each request's table of the slots it owns.

Accepting a path keeps its slots and frees the rest. While a request's committed slots form one run, attention reads
them as a view; a path that would break the run is moved onto it instead, one indexed copy over all layers, because that
costs less than gathering keys and values in every layer of every later step.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from foredraft.core.errors import SlotsError
from foredraft.core.plan_builder import compact
from foredraft.core.step_plan import Slots


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Keys and values of one token in one layer: heads and their sizes."""

    heads: int
    key_size: int
    value_size: int

    @property
    def numbers(self) -> int:
        return self.heads * (self.key_size + self.value_size)


class LayerGroup:
    """Keys and values of one model's layers; all groups of a pool share slot numbers.

    All that has one shape, keys and values of any layer, lies in one tensor, so that moving rows takes few operations
    however many layers there are.

    Attributes:
        shapes, device: What each layer stores for a token, and where.
        stacks: The storage, one tensor [parts, slots, heads, size] for each shape.
        keys, values: Each layer's part of it, contiguous [slots, heads, size].
    """

    def __init__(self, shapes: dict[int, LayerShape], slots: int, dtype: torch.dtype, device: torch.device):
        self.shapes, self.device = shapes, device
        parts = Counter(part for s in shapes.values() for part in ((s.heads, s.key_size), (s.heads, s.value_size)))
        self.stacks = [torch.zeros(count, slots, *part, dtype=dtype, device=device) for part, count in parts.items()]
        views = {part: [stack[i] for i in range(len(stack))] for part, stack in zip(parts, self.stacks, strict=True)}
        self.keys = {i: views[s.heads, s.key_size].pop() for i, s in shapes.items()}
        self.values = {i: views[s.heads, s.value_size].pop() for i, s in shapes.items()}

    def write(self, layer: int, slots: Slots, key: Tensor, value: Tensor) -> None:
        """Store `key` and `value`, [heads, T, size], in `slots`."""
        self.keys[layer][slots] = key.transpose(0, 1)
        self.values[layer][slots] = value.transpose(0, 1)

    def read(self, layer: int, slots: Slots) -> tuple[Tensor, Tensor]:
        """Keys and values of `slots`, [heads, S, size]: a view for a run, a gather otherwise."""
        keys, values = self.keys[layer], self.values[layer]
        if isinstance(slots, slice):
            return keys[slots].transpose(0, 1), values[slots].transpose(0, 1)
        return keys.index_select(0, slots).transpose(0, 1), values.index_select(0, slots).transpose(0, 1)

    def move(self, source: list[int], target: list[int]) -> None:
        """Copy the rows of slots `source` to slots `target`; the two may overlap."""
        rows, places = torch.tensor(source, device=self.device), compact(target, self.device)
        for stack in self.stacks:
            stack[:, places] = stack.index_select(1, rows)


@dataclass(kw_only=True, eq=False)
class SlotTable:
    """The slots of one request: `slots` hold its committed positions in order, `tail` what the current step took.

    Attributes:
        slots: Slots of committed positions, [length].
        tail: Slots taken for rows of the current step, in the order they were taken.
        run: Whether `slots` is one ascending run.
    """

    slots: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    run: bool = True

    def __len__(self) -> int:
        return len(self.slots)

    def committed(self, device: torch.device) -> Slots:
        """Slots of the committed positions for a plan: a slice for a run."""
        if self.run:
            first = self.slots[0] if self.slots else 0
            return slice(first, first + len(self.slots))
        return torch.tensor(self.slots, device=device)


class SlotPool:
    """Token slots shared by all requests and all layer groups."""

    def __init__(self, slots: int, device: torch.device | str = "cpu"):
        self.size = slots
        self.device = torch.device(device)
        self.used = np.zeros(slots, dtype=bool)
        self.free = slots
        self.groups: dict[str, LayerGroup] = {}
        self.starts: dict[int, tuple[int, int]] = {}  # id of a table -> the region it is expected to grow into

    def add_layers(self, name: str, shapes: dict[int, LayerShape], dtype: torch.dtype) -> LayerGroup:
        """Storage for another model's layers under the same slot numbers."""
        assert name not in self.groups
        self.groups[name] = LayerGroup(shapes, self.size, dtype, self.device)
        return self.groups[name]

    def open(self, expected: int) -> SlotTable:
        """A table for a request that may grow to `expected` slots; nothing is taken yet."""
        table = SlotTable()
        self.starts[id(table)] = self.region(expected)
        return table

    def region(self, expected: int) -> tuple[int, int]:
        """First gap of `expected` slots that nobody uses or is expected to grow into; the pool's start if none is."""
        taken = self.used.copy()
        for start, stop in self.starts.values():
            taken[start:stop] = True
        edges = np.flatnonzero(np.diff(np.concatenate([[True], taken, [True]]).astype(np.int8)))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            if stop - start >= expected:
                return int(start), int(start) + expected
        return 0, 0

    def take(self, table: SlotTable, count: int) -> list[int]:
        """Add `count` slots to the table's tail and return them. Raises `SlotsError` when too few are free."""
        if count > self.free:
            raise SlotsError(f"{count} cache slots are needed and {self.free} of {self.size} are free")
        slots = self.next_slots(table, count)
        self.used[slots] = True
        self.free -= count
        table.tail += slots
        return slots

    def next_slots(self, table: SlotTable, count: int) -> list[int]:
        """Slots that continue the table's run where they are free, else any free ones."""
        last = table.tail[-1] if table.tail else table.slots[-1] if table.slots else self.starts[id(table)][0] - 1
        start, stop = last + 1, last + 1 + count
        if stop <= self.size and not self.used[start:stop].any():
            return list(range(start, stop))
        return np.flatnonzero(~self.used)[:count].tolist()

    def keep(self, table: SlotTable, kept: list[int]) -> None:
        """Commit the tail slots `kept`, in sequence order, and free the rest of the tail."""
        if table.run and not self.continues(table, kept):
            kept = self.moved(table, kept)
        table.run = table.run and self.continues(table, kept)
        remaining = set(kept)
        self.release([slot for slot in table.tail if slot not in remaining])
        table.slots += kept
        table.tail = []

    @staticmethod
    def continues(table: SlotTable, kept: list[int]) -> bool:
        """Whether the committed slots and `kept` together are one ascending run."""
        first = table.slots[-1] + 1 if table.slots else kept[0] if kept else 0
        return kept == list(range(first, first + len(kept)))

    def moved(self, table: SlotTable, kept: list[int]) -> list[int]:
        """Copy the rows of `kept` onto the tail slots that continue the run; unchanged where the tail has none."""
        first = table.slots[-1] + 1 if table.slots else table.tail[0]
        onto = list(range(first, first + len(kept)))
        if not set(onto) <= set(table.tail):
            return kept
        stay = next(i for i, (slot, place) in enumerate(zip(kept, onto, strict=True)) if slot != place)
        for group in self.groups.values():
            group.move(kept[stay:], onto[stay:])
        return onto

    def release(self, slots: list[int]) -> None:
        assert self.used[slots].all()
        self.used[slots] = False
        self.free += len(slots)

    def close(self, table: SlotTable) -> None:
        """Free every slot of a finished request."""
        self.release(table.slots + table.tail)
        table.slots, table.tail = [], []
        del self.starts[id(table)]

    def check_integrity(self, tables: list[SlotTable]) -> None:
        """Assert that `tables`, all that are open, own each used slot exactly once."""
        owned = [slot for table in tables for slot in table.slots + table.tail]
        assert len(owned) == len(set(owned)), "a slot has two owners"
        assert self.used.sum() == len(owned) == self.size - self.free, "slots have leaked"
        assert len(self.starts) == len(tables), "a table was not closed"
        assert all(compact(t.slots, self.device) == t.committed(self.device) for t in tables if t.run and t.slots)
