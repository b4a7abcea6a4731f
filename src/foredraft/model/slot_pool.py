"""The key-value cache: a pool of token slots, and each request's table of the slots it owns.

Accepting a path keeps its slots and frees the rest. While a request's committed slots form one run, attention reads
them as a view; a path that would break the run is moved onto it instead, one indexed copy over all layers, because that
costs less than gathering keys and values in every layer of every later step.

Slots that nobody has in use may still hold text that a lender keeps for later requests. A request that begins with such
a text borrows its slots, or takes a copy of their rows. What nobody has borrowed is evicted when slots run short.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from foredraft.core.errors import SlotsError
from foredraft.core.slots import Slots, compact, indices, is_run
from foredraft.model.native_runtime import helpers

native = helpers()  # moves rows without torch's threads, which crawl beside a busy neighbour
COPY_ROWS = 1024  # rows copied at once where they are gathered, so that their copy stays small


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
        keeps_drafts: Whether what it holds of a drafted token stays valid once the token is accepted.
        stacks: The storage, one tensor [parts, slots + 1, heads, size] for each shape.
        keys, values: Each layer's part of it, contiguous [slots + 1, heads, size].
        spare: The last slot, which is in no pool: what rows that only fill up a forward store goes there.
    """

    def __init__(
        self,
        shapes: dict[int, LayerShape],
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        keeps_drafts: bool = True,
    ):
        self.shapes, self.device, self.keeps_drafts = shapes, device, keeps_drafts
        parts = Counter(part for s in shapes.values() for part in ((s.heads, s.key_size), (s.heads, s.value_size)))
        self.spare = slots
        self.stacks = [
            torch.zeros(count, slots + 1, *part, dtype=dtype, device=device) for part, count in parts.items()
        ]
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
        if native is not None and self.device.type == "cpu":
            native.move_rows(self.stacks, source, target)
        else:
            self.move_by_torch(source, target)

    def move_by_torch(self, source: list[int], target: list[int]) -> None:
        rows, places = compact(source, self.device), compact(target, self.device)
        runs = isinstance(rows, slice) and isinstance(places, slice)
        if runs and (rows.stop <= places.start or places.stop <= rows.start):
            for stack in self.stacks:
                stack[:, places] = stack[:, rows]
            return
        rows = indices(rows, self.device)
        for stack in self.stacks:
            stack[:, places] = stack.index_select(1, rows)


@dataclass(kw_only=True, eq=False)
class SlotTable:
    """The slots of one request: `slots` hold its committed positions in order, `tail` what the current step took.

    Attributes:
        slots: Slots of committed positions, [length].
        tail: Slots taken for rows of the current step, in the order they were taken.
        run: Whether `slots` is one ascending run.
        expected: Slots the request may come to hold.
        region: Where it is expected to grow, first slot and the one past the last; none before it takes any.
        borrowed: Those of `slots` that a lender owns: they are read, and not freed with the table.
        inherited: So many of the first positions hold rows that came from a lender, borrowed or copied.
    """

    slots: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    run: bool = True
    expected: int = 0
    region: tuple[int, int] | None = None
    borrowed: set[int] = field(default_factory=set)
    inherited: int = 0

    @property
    def own(self) -> list[int]:
        """Slots that are freed with the table."""
        return [slot for slot in self.slots if slot not in self.borrowed] + self.tail

    def __len__(self) -> int:
        return len(self.slots)

    def committed(self, device: torch.device) -> Slots:
        """Slots of the committed positions for a plan: a slice for a run."""
        if self.run:
            first = self.slots[0] if self.slots else 0
            return slice(first, first + len(self.slots))
        return torch.tensor(self.slots, device=device)


class Lender(Protocol):
    """Owns slots of a pool that hold what requests may use again, and gives up those that nobody uses.

    Attributes:
        evictable: How many slots it can give up.
    """

    evictable: int

    def evict(self, count: int) -> int:
        """Free at least `count` slots, all of them where it has fewer; how many."""

    def evictable_slots(self) -> np.ndarray:
        """The slots it can give up, each once."""

    def held_slots(self) -> np.ndarray:
        """All slots it owns."""

    def let_go(self, table: SlotTable) -> None:
        """A table that may have borrowed from it is closed."""


class SlotPool:
    """Token slots shared by all requests and all layer groups.

    Attributes:
        size, free: Slots in all, and those that neither a table nor a lender owns.
        flags, used: Which slots are owned, [size]: bytes, and the same bytes as an array.
        groups: Layers by whose they are.
        tables: The open ones.
        lenders: Who keeps slots beside the tables.
    """

    def __init__(self, slots: int, device: torch.device | str = "cpu"):
        self.size = slots
        self.device = torch.device(device)
        self.flags = bytearray(slots)  # single slots are looked at in next to no time
        self.used = np.frombuffer(self.flags, dtype=bool)
        self.free = slots
        self.groups: dict[str, LayerGroup] = {}
        self.tables: list[SlotTable] = []
        self.lenders: list[Lender] = []

    def add_layers(
        self, name: str, shapes: dict[int, LayerShape], dtype: torch.dtype, *, keeps_drafts: bool = True
    ) -> LayerGroup:
        """Storage for another model's layers under the same slot numbers.

        Without `keeps_drafts` nobody reads what it holds of a drafted token once the step is over.
        """
        assert name not in self.groups
        self.groups[name] = LayerGroup(shapes, self.size, dtype, self.device, keeps_drafts=keeps_drafts)
        return self.groups[name]

    def open(self, expected: int) -> SlotTable:
        """A table for a request that may grow to `expected` slots; nothing is taken yet."""
        table = SlotTable(expected=expected)
        self.tables.append(table)
        return table

    def place(self, table: SlotTable) -> bool:
        """Find the table a region to grow into, evicting what stands in its way; whether all it expects fits.

        Where no gap is wide enough the widest one has to do: a request seldom gets as long as it may.
        """
        reserved = self.reserved(table)
        gaps = gaps_of(self.used | reserved)
        wide = first_gap(gaps, table.expected) or self.cleared_gap(table.expected, reserved)
        start, stop = wide or max(gaps, key=lambda gap: gap[1] - gap[0], default=(0, 0))
        table.region = (start, min(stop, start + table.expected))
        return wide is not None

    def place_behind(self, table: SlotTable, slots: list[int]) -> bool:
        """Let the table grow right behind `slots` where they are a run and nobody uses or expects what follows them."""
        if not is_run(slots) or slots[0] + table.expected > self.size:
            return False
        region = (slots[-1] + 1, slots[0] + table.expected)
        if self.used[slice(*region)].any() or self.reserved(table)[slice(*region)].any():
            return False
        table.region = region
        return True

    def reserved(self, table: SlotTable) -> np.ndarray:
        """Which slots another table than `table` expects, [size]."""
        reserved = np.zeros(self.size, dtype=bool)
        for other in self.tables:
            if other is not table and other.region is not None:
                reserved[slice(*other.region)] = True
        return reserved

    def cleared_gap(self, width: int, reserved: np.ndarray) -> tuple[int, int] | None:
        """A gap of `width` beside what is `reserved`, made by evicting what was not used for longest; none where
        evicting all makes none."""
        kept = self.used.copy()
        for lender in self.lenders:
            kept[lender.evictable_slots()] = False
        if first_gap(gaps_of(kept | reserved), width) is None:
            return None
        found = None
        while found is None:
            next(lender for lender in self.lenders if lender.evictable).evict(1)
            found = first_gap(gaps_of(self.used | reserved), width)
        return found

    def take(self, table: SlotTable, count: int) -> list[int]:
        """Add `count` slots to the table's tail and return them. Raises `SlotsError` when too few are free."""
        for lender in self.lenders:
            if count > self.free:
                lender.evict(count - self.free)
        if count > self.free:
            raise SlotsError(f"{count} cache slots are needed and {self.free} of {self.size} are free")
        if table.region is None:
            self.place(table)
        slots = self.next_slots(table, count)
        self.mark(slots, owned=True)
        self.free -= count
        table.tail += slots
        return slots

    def next_slots(self, table: SlotTable, count: int) -> list[int]:
        """Slots that continue the table's run as far as they are free, then those its region begins with, then any."""
        last = table.tail[-1] if table.tail else table.slots[-1] if table.slots else table.region[0] - 1
        slots = self.free_from(last + 1, count)
        if len(slots) < count:
            begun = self.free_from(table.region[0], count)
            slots = list(islice(unique(chain(slots, begun, self.free_slots())), count))
        return slots

    def free_slots(self) -> Iterator[int]:
        """All free slots, ascending, looked for one by one: a list of all of a large pool takes a millisecond."""
        slot = self.flags.find(0)
        while slot >= 0:
            yield slot
            slot = self.flags.find(0, slot + 1)

    def free_from(self, start: int, count: int) -> list[int]:
        """At most `count` free slots one after another, the first at `start`."""
        stop = min(start + count, self.size)
        taken = self.flags.find(1, start, stop)
        return list(range(start, stop if taken < 0 else taken))

    def mark(self, slots: list[int], *, owned: bool) -> None:
        """Set whether `slots` are owned."""
        if slots and is_run(slots):
            self.flags[slots[0] : slots[-1] + 1] = bytes([owned]) * len(slots)
            return
        for slot in slots:
            self.flags[slot] = owned

    def borrow(self, table: SlotTable, slots: list[int]) -> None:
        """Begin the table with slots that a lender owns. It says itself when they may go, by `Lender.let_go`."""
        assert not table.slots and self.used[slots].all()
        table.slots, table.borrowed = list(slots), set(slots)
        table.run, table.inherited = is_run(slots), len(slots)

    def copy(self, table: SlotTable, slots: list[int]) -> None:
        """Begin the table with slots of its own that hold what `slots` hold, in all layers."""
        assert not table.slots
        onto = self.take(table, len(slots))
        for start in range(0, len(slots), COPY_ROWS):
            part = slice(start, start + COPY_ROWS)
            for group in self.groups.values():
                group.move(slots[part], onto[part])
        self.keep(table, onto)
        table.inherited = len(slots)

    def keep(self, table: SlotTable, kept: list[int]) -> None:
        """Commit the tail slots `kept`, in sequence order, and free the rest of the tail."""
        if table.run and not self.continues(table, kept):
            kept = self.moved(table, kept)
            table.run = self.continues(table, kept)
        if kept != table.tail:
            remaining = set(kept)
            self.release([slot for slot in table.tail if slot not in remaining])
        table.slots += kept
        table.tail = []

    @staticmethod
    def continues(table: SlotTable, kept: list[int]) -> bool:
        """Whether the committed slots and `kept` together are one ascending run."""
        return is_run(table.slots[-1:] + kept)

    def moved(self, table: SlotTable, kept: list[int]) -> list[int]:
        """Copy the rows of `kept` onto the tail slots that continue the run; unchanged where the tail has none."""
        first = table.slots[-1] + 1 if table.slots else table.tail[0]
        onto = list(range(first, first + len(kept)))
        if not set(onto) <= set(table.tail):
            return kept
        stay = next(i for i, (slot, place) in enumerate(zip(kept, onto, strict=True)) if slot != place)
        for group in (group for group in self.groups.values() if group.keeps_drafts):
            group.move(kept[stay:], onto[stay:])
        return onto

    def release(self, slots: list[int]) -> None:
        if not slots:
            return
        assert all([self.flags[slot] for slot in slots])
        self.mark(slots, owned=False)
        self.free += len(slots)

    def close(self, table: SlotTable) -> None:
        """Free every slot of a finished request but those it has borrowed."""
        self.release(table.own)
        table.slots, table.tail, table.borrowed, table.region = [], [], set(), None
        self.tables = [other for other in self.tables if other is not table]
        for lender in self.lenders:
            lender.let_go(table)

    def check_integrity(self, tables: list[SlotTable]) -> None:
        """Assert that `tables`, all that are open, and the lenders own each used slot exactly once."""
        lent = [slot for lender in self.lenders for slot in lender.held_slots().tolist()]
        owned = [slot for table in tables for slot in table.own] + lent
        assert len(owned) == len(set(owned)), "a slot has two owners"
        assert self.used.sum() == len(owned) == self.size - self.free, "slots have leaked"
        assert self.used[owned].all(), "a slot in use counts as free"
        assert all(table.borrowed <= set(lent) and table.borrowed <= set(table.slots) for table in tables)
        assert len(self.tables) == len(tables), "a table was not closed"
        assert all(compact(t.slots, self.device) == t.committed(self.device) for t in tables if t.run and t.slots)


def gaps_of(taken: np.ndarray) -> list[tuple[int, int]]:
    """Runs of slots that are not `taken`, [size], each with the slot past its last, in order."""
    edges = np.flatnonzero(np.diff(np.concatenate([[True], taken, [True]]).astype(np.int8))).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def unique(slots: Iterable[int]) -> Iterator[int]:
    """Each slot once, where it comes first."""
    seen: set[int] = set()
    for slot in slots:
        if slot not in seen:
            seen.add(slot)
            yield slot


def first_gap(gaps: list[tuple[int, int]], width: int) -> tuple[int, int] | None:
    """The first of `gaps` that is wide enough."""
    return next((gap for gap in gaps if gap[1] - gap[0] >= width), None)
