"""The pool owns every slot once, and a table's slots hold its own tokens whatever was accepted and moved."""

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from foredraft.core.errors import SlotsError
from foredraft.core.slots import compact, indices
from foredraft.model import slot_pool
from foredraft.model.slot_pool import LayerGroup, LayerShape, SlotPool, SlotTable

CPU = torch.device("cpu")
SHAPES = {0: LayerShape(1, 2, 1), 3: LayerShape(2, 1, 3)}


class PoolMachine(RuleBasedStateMachine):
    """Every taken slot gets a token of its own, written as a key; the model is the tokens a table should hold."""

    @initialize(size=st.integers(4, 48))
    def make(self, size):
        self.pool = SlotPool(size)
        self.layers = [self.pool.add_layers(name, SHAPES, torch.float32) for name in ("target", "draft")]
        self.tables: list[tuple[SlotTable, list[int], list[int]]] = []  # table, committed tokens, tail tokens
        self.written = 0

    @rule(expected=st.integers(0, 20))
    def open(self, expected):
        self.tables.append((self.pool.open(expected), [], []))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), count=st.integers(0, 9))
    def take(self, data, count):
        table, _, tail = data.draw(st.sampled_from(self.tables))
        before = list(table.tail)
        if count > self.pool.free:
            with pytest.raises(SlotsError, match=f"{count} cache slots are needed and {self.pool.free} of"):
                self.pool.take(table, count)
            assert table.tail == before
            return
        slots = self.pool.take(table, count)
        assert len(slots) == count and table.tail == before + slots
        if slots:
            self.write(slots, tail)

    def write(self, slots: list[int], tail: list[int]) -> None:
        tokens = list(range(self.written + 1, self.written + 1 + len(slots)))
        self.written += len(slots)
        tail += tokens
        for layers in self.layers:
            for layer, shape in SHAPES.items():
                key, value = (
                    torch.tensor(tokens).float()[None, :, None].expand(shape.heads, -1, size)
                    for size in (shape.key_size, shape.value_size)
                )
                layers.write(layer, compact(slots, CPU), key, -value)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), in_order=st.booleans())
    def keep(self, data, in_order):
        entry = data.draw(st.sampled_from(self.tables))
        table, committed, tail = entry
        chosen = data.draw(st.lists(st.sampled_from(range(len(tail))), unique=True)) if tail else []
        chosen = sorted(chosen) if in_order else chosen
        self.pool.keep(table, [table.tail[i] for i in chosen])
        assert table.tail == []
        committed += [tail[i] for i in chosen]
        tail.clear()

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def close(self, data):
        entry = data.draw(st.sampled_from(self.tables))
        self.pool.close(entry[0])
        self.tables = [other for other in self.tables if other is not entry]

    @invariant()
    def slots_have_one_owner(self):
        if hasattr(self, "pool"):
            self.pool.check_integrity([table for table, _, _ in self.tables])

    @invariant()
    def slots_hold_their_tokens(self):
        for table, committed, tail in getattr(self, "tables", []):
            assert len(table) == len(committed)
            assert indices(table.committed(CPU), CPU).tolist() == table.slots
            for slots, tokens in ((table.committed(CPU), committed), (compact_or_empty(table.tail), tail)):
                for layers in self.layers:
                    for layer in SHAPES:
                        keys, values = layers.read(layer, slots)
                        assert (keys == torch.tensor(tokens)[None, :, None]).all()
                        assert (values == -torch.tensor(tokens)[None, :, None]).all()


def compact_or_empty(slots: list[int]):
    return compact(slots, CPU) if slots else slice(0, 0)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("path", [[0], [0, 3, 6], [0, 7], [0, 2, 1], []])
def test_a_lone_request_is_read_as_a_view(path):
    pool = SlotPool(32)
    layers = pool.add_layers("target", SHAPES, torch.float32)
    table = pool.open(16)
    pool.keep(table, pool.take(table, 5))
    tail = pool.take(table, 8)
    pool.keep(table, [tail[i] for i in path])
    assert table.run and table.committed(CPU) == slice(0, 5 + len(path))
    keys, _ = layers.read(0, table.committed(CPU))
    assert keys.untyped_storage().data_ptr() == layers.keys[0].untyped_storage().data_ptr()


@pytest.mark.skipif(slot_pool.native is None, reason="foredraft-native is not installed or off")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "source, target", [([5, 6, 7], [4, 5, 6]), ([9, 3, 5], [1, 2, 3]), ([2], [2]), ([3, 4], [7, 8])]
)
def test_rows_move_alike_by_either_path(dtype, source, target):
    ours, torchs = (LayerGroup(SHAPES, 12, dtype, CPU) for _ in range(2))
    for group in (ours, torchs):
        for stack in group.stacks:
            stack[:] = torch.arange(stack.numel()).reshape(stack.shape) % 251
    ours.move(source, target)
    torchs.move_by_torch(source, target)
    assert all(torch.equal(one, other) for one, other in zip(ours.stacks, torchs.stacks, strict=True))


@pytest.mark.skipif(slot_pool.native is None, reason="foredraft-native is not installed or off")
def test_rows_that_are_not_there_are_refused():
    stack = torch.zeros(2, 4, 3)
    for source, target in (([4], [0]), ([0], [-1]), ([0, 1], [2])):
        with pytest.raises(ValueError):
            slot_pool.native.move_rows([stack], source, target)
    with pytest.raises(ValueError):
        slot_pool.native.move_rows([stack.transpose(0, 1)], [0], [1])


def test_rows_of_drafted_tokens_move_only_where_they_stay_valid():
    pool = SlotPool(32)
    kept, passing = (
        pool.add_layers(name, SHAPES, torch.float32, keeps_drafts=keeps)
        for name, keeps in (("target", True), ("head", False))
    )
    for layers in (kept, passing):
        layers.keys[0][:32] = torch.arange(32.0)[:, None, None]
    table = pool.open(16)
    pool.keep(table, pool.take(table, 5))
    tail = pool.take(table, 4)
    pool.keep(table, [tail[0], tail[3]])
    assert table.slots == list(range(7))
    assert kept.keys[0][6, 0, 0] == tail[3] and passing.keys[0][6, 0, 0] == 6


def test_requests_grow_in_regions_of_their_own():
    pool = SlotPool(30)
    first, second, third = pool.open(10), pool.open(10), pool.open(10)
    assert [pool.take(table, 2)[0] for table in (third, first, second)] == [0, 10, 20]
    for table in (first, second, third):
        pool.keep(table, list(table.tail))
        pool.keep(table, pool.take(table, 8))
        assert table.run
    assert pool.free == 0


def test_who_has_outgrown_its_region_takes_any_free_slots_in_order():
    pool = SlotPool(12)
    first, second = pool.open(4), pool.open(4)
    pool.keep(first, pool.take(first, 4))
    pool.keep(second, pool.take(second, 2))  # slots 4 and 5; it expects 6 and 7, too
    assert pool.take(first, 5) == [6, 7, 8, 9, 10]
    assert pool.take(second, 1) == [11]
    with pytest.raises(SlotsError):
        pool.take(second, 1)


def test_a_path_is_not_moved_onto_slots_of_others():
    pool = SlotPool(12)
    layers = pool.add_layers("target", SHAPES, torch.float32)
    one, other = pool.open(1), pool.open(1)
    for table in (one, other, one, other, one, other):
        pool.take(table, 1)
    layers.keys[0][:12] = torch.arange(12.0)[:, None, None]
    before = layers.keys[0].clone()
    pool.keep(one, [0, 4])
    assert one.slots == [0, 4] and not one.run
    assert torch.equal(layers.keys[0], before)
    assert one.committed(CPU).tolist() == [0, 4]


LAYERS = {0: LayerShape(1, 2, 1), 1: LayerShape(2, 4, 4), 2: LayerShape(2, 4, 4), 5: LayerShape(1, 8, 0)}


def numbered_layers(slots: int) -> LayerGroup:
    """Every key and value is its slot, and by sign which of the two it is."""
    group = LayerGroup(LAYERS, slots, torch.float32, CPU)
    for store, sign in ((group.keys, 1), (group.values, -1)):
        for rows in store.values():
            rows[:slots] = sign * torch.arange(slots)[:, None, None]
    return group


def test_layers_of_one_shape_lie_together():
    """Each layer's rows as contiguous as alone, nothing stored twice, and as few tensors as there are shapes."""
    group = numbered_layers(16)
    for layer, shape in LAYERS.items():
        for rows, size in ((group.keys[layer], shape.key_size), (group.values[layer], shape.value_size)):
            assert rows.shape == (16 + 1, shape.heads, size) and rows.is_contiguous()
    parts = [*group.keys.values(), *group.values.values()]
    assert len({part.data_ptr() for part in parts if part.numel()}) == sum(part.numel() > 0 for part in parts)
    stored = sum(stack.numel() for stack in group.stacks)
    assert stored == (16 + 1) * sum(shape.numbers for shape in LAYERS.values()) and len(group.stacks) == 5


@pytest.mark.parametrize(
    ("source", "target"), [([7], [3]), ([4, 6, 9], [3, 4, 5]), ([3, 4], [4, 5]), ([2, 9, 5], [9, 2, 11])]
)
def test_a_move_copies_rows_of_every_layer(source, target):
    group, wanted = numbered_layers(16), torch.arange(16.0)
    wanted[target] = wanted[source]
    group.move(source, target)
    for layer in LAYERS:
        assert (group.keys[layer][:16] == wanted[:, None, None]).all()
        assert (group.values[layer][:16] == -wanted[:, None, None]).all()


def test_rows_already_in_place_are_not_copied(monkeypatch):
    moves, move = [], LayerGroup.move
    monkeypatch.setattr(LayerGroup, "move", lambda group, *args: (moves.append(args), move(group, *args)))
    pool = SlotPool(16)
    pool.add_layers("target", SHAPES, torch.float32)
    table = pool.open(16)
    pool.keep(table, pool.take(table, 3))
    pool.take(table, 8)
    pool.keep(table, [3, 4, 7, 9])
    assert moves == [([7, 9], [5, 6])] and table.slots == list(range(7))
    pool.keep(table, pool.take(table, 2))
    assert len(moves) == 1


def test_double_release_is_an_error_of_ours():
    pool = SlotPool(4)
    table = pool.open(2)
    pool.take(table, 1)
    pool.keep(table, [])
    with pytest.raises(AssertionError):
        pool.release([0])


class Keeper:
    """A lender that keeps the slots of whole tables, and evicts the oldest of them first."""

    def __init__(self, pool: SlotPool):
        self.pool, self.texts, self.gone = pool, [], []
        pool.lenders.append(self)

    def take_over(self, table: SlotTable) -> list[int]:
        self.texts.append(list(table.slots))
        table.borrowed.update(table.slots)
        self.pool.close(table)
        return self.texts[-1]

    @property
    def evictable(self):
        return len(self.held_slots())

    def evict(self, count):
        freed = 0
        while self.texts and freed < count:
            slots = self.texts.pop(0)
            self.pool.release(slots)
            freed += len(slots)
        return freed

    def held_slots(self):
        return np.array([slot for text in self.texts for slot in text], dtype=np.int64)

    evictable_slots = held_slots

    def let_go(self, table):
        self.gone.append(table)


def filled(pool: SlotPool, expected: int, count: int) -> SlotTable:
    """A table with `count` slots, whose rows are marked by their numbers."""
    table = pool.open(expected)
    pool.keep(table, pool.take(table, count))
    for group in pool.groups.values():
        group.keys[0][table.slots] = torch.tensor(table.slots).float()[:, None, None]
    return table


def lending_pool(size: int) -> tuple[SlotPool, Keeper]:
    pool = SlotPool(size)
    pool.add_layers("target", SHAPES, torch.float32)
    return pool, Keeper(pool)


def test_lent_slots_are_given_up_when_others_lack_them():
    pool, keeper = lending_pool(20)
    for _ in range(3):
        keeper.take_over(filled(pool, 6, 6))
    pool.check_integrity([])
    table = pool.open(4)
    assert len(pool.take(table, 4)) == 4 and keeper.texts == [list(range(6, 12)), list(range(12, 18))]
    assert pool.take(table, 12) and not keeper.texts
    pool.check_integrity([table])
    with pytest.raises(SlotsError, match="5 cache slots are needed and 4 of 20"):
        pool.take(table, 5)


def test_a_region_is_cleared_only_where_that_makes_one():
    pool, keeper = lending_pool(30)
    first = filled(pool, 12, 12)
    keeper.take_over(filled(pool, 9, 9))
    wide, narrow = pool.open(20), pool.open(15)
    assert not pool.place(wide) and keeper.texts and wide.region == (21, 30)
    pool.close(wide)
    assert pool.place(narrow) and not keeper.texts and narrow.region == (12, 27)
    pool.check_integrity([first, narrow])


def test_a_table_grows_behind_what_it_borrows():
    pool, keeper = lending_pool(30)
    text = keeper.take_over(filled(pool, 6, 6))
    table = pool.open(12)
    assert pool.place_behind(table, text)
    pool.borrow(table, text)
    pool.keep(table, pool.take(table, 3))
    assert table.run and table.slots == list(range(9)) and table.inherited == 6
    pool.check_integrity([table])
    other = pool.open(12)
    assert not pool.place_behind(other, text)  # one grows there already
    assert not pool.place_behind(other, [0, 2]) and not pool.place_behind(pool.open(40), text)
    pool.close(table)
    assert keeper.gone[-1] is table and pool.used.sum() == 6
    assert pool.place_behind(other, text)


@pytest.mark.parametrize("scattered", [False, True])
def test_a_copy_holds_the_same_rows(monkeypatch, scattered):
    monkeypatch.setattr(slot_pool, "COPY_ROWS", 4)
    pool, keeper = lending_pool(60)
    text = keeper.take_over(filled(pool, 20, 20))
    text = text[1::2] if scattered else text[:10]
    table = pool.open(15)
    pool.copy(table, text)
    assert table.run and table.slots == list(range(20, 30)) and not table.borrowed and table.inherited == 10
    for group in pool.groups.values():
        assert group.keys[0][table.slots][:, 0, 0].tolist() == text
    pool.check_integrity([table])
    pool.close(table)
    pool.check_integrity([])


def test_a_draft_that_does_not_fit_the_region_begins_in_it():
    """What is accepted of its first nodes then continues the run."""
    pool = SlotPool(24)
    table, other = filled(pool, 8, 6), filled(pool, 8, 4)
    tail = pool.take(table, 4)
    assert tail[:2] == [6, 7] and set(tail[2:]) <= set(range(12, 24))
    pool.keep(table, tail[:2])
    assert table.run
    pool.check_integrity([table, other])


@pytest.mark.parametrize("fault", ["shared", "leaked", "open", "lent", "borrowed"])
def test_integrity_check_finds(fault):
    pool = SlotPool(8)
    tables = [pool.open(2), pool.open(2)]
    for table in tables:
        pool.take(table, 2)
    if fault == "shared":
        tables[0].tail[0] = tables[1].tail[0]
    elif fault == "leaked":
        tables[0].tail.pop()
    elif fault == "lent":
        Keeper(pool).texts.append(tables[0].tail[:1])
    elif fault == "borrowed":
        tables[0].borrowed.add(tables[0].tail[0])
    else:
        pool.close(tables.pop())
        pool.open(2)
    with pytest.raises(AssertionError):
        pool.check_integrity(tables)
