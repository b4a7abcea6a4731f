"""The radix tree finds what a dictionary of all beginnings finds, and gives up what was not used for longest."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from foredraft.engine.prefix_tree import Node, PrefixTree, matches, pairs

TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def array(tokens) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def slots_of(path) -> list[int]:
    return [slot for node, matching in path for slot in node.slots[:matching].tolist()]


class TreeMachine(RuleBasedStateMachine):
    """The model: the slot of every beginning of every text."""

    def __init__(self):
        super().__init__()
        self.tree, self.known, self.next_slot = PrefixTree(), {}, 0
        self.locks: list[tuple[Node, tuple]] = []

    def beginning(self, text) -> list[int]:
        slots = []
        while len(slots) < len(text) and (slot := self.known.get(tuple(text[: len(slots) + 1]))) is not None:
            slots.append(slot)
        return slots

    @rule(text=TEXTS)
    def find(self, text):
        assert slots_of(self.tree.path(array(text))) == self.beginning(text)

    @rule(text=TEXTS)
    def insert(self, text):
        path, start = self.tree.path(array(text)), len(self.beginning(text))
        end = self.tree.end(path)
        if start < len(text):
            slots = list(range(self.next_slot, self.next_slot + len(text) - start))
            self.next_slot += len(slots)
            end = self.tree.add(end, array(text[start:]), array(slots), {})
            self.known |= {tuple(text[: start + i + 1]): slot for i, slot in enumerate(slots)}
        self.tree.use(end)
        assert slots_of(self.tree.path(array(text))) == self.beginning(text) and len(self.beginning(text)) == len(text)

    @rule(text=TEXTS)
    def lock(self, text):
        path = self.tree.path(array(text))
        if path:
            node = self.tree.end(path)
            self.tree.lock(node)
            self.locks.append((node, tuple(text[: len(self.beginning(text))])))

    @precondition(lambda self: self.locks)
    @rule(data=st.data())
    def unlock(self, data):
        entry = data.draw(st.sampled_from(self.locks))
        self.locks = [other for other in self.locks if other is not entry]
        self.tree.unlock(entry[0])

    @rule(count=st.integers(0, 12))
    def evict(self, count):
        held = {tuple(text[: i + 1]) for _, text in self.locks for i in range(len(text))}
        free = {slot for text, slot in self.known.items() if text not in held}
        assert set(self.tree.evictable_slots()) >= free and self.tree.evictable == len(free)
        evicted = self.tree.evict(count)
        assert set(evicted) <= free and len(evicted) == len(set(evicted)) >= min(count, len(free))
        self.known = {text: slot for text, slot in self.known.items() if slot not in set(evicted)}
        assert all(text[:-1] in self.known for text in self.known if len(text) > 1)

    @invariant()
    def it_is_whole(self):
        self.tree.check_integrity([node for node, _ in self.locks])
        assert self.tree.size == len(self.known)
        assert sorted(self.tree.held_slots()) == sorted(self.known.values())
        for node, text in self.locks:
            assert slots_of(self.tree.path(array(text))) == self.beginning(text)
            assert node.slots[-1] == self.known[text]


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


def grown(*texts: list[int]) -> PrefixTree:
    """Each text's slots are its number, times ten, and what follows."""
    tree = PrefixTree()
    for number, text in enumerate(texts, start=1):
        path = tree.path(array(text))
        start = sum(matching for _, matching in path)
        slots = array(range(10 * number + start, 10 * number + len(text)))
        tree.use(tree.add(tree.end(path), array(text[start:]), slots, {}))
    return tree


def test_what_was_not_used_for_longest_goes_first():
    tree = grown([1, 2, 3], [4, 5], [6])
    tree.use(tree.end(tree.path(array([1, 2, 3]))))
    assert tree.evict(1) == [20, 21]
    assert tree.evict(2) == [30, 10, 11, 12]
    assert tree.evict(1) == [] and tree.size == 0


def test_a_shared_beginning_outlives_its_continuations():
    tree = grown([1, 2, 3, 4], [1, 2, 5])
    assert tree.evict(1) == [12, 13]
    assert tree.evict(1) == [22]
    assert tree.evict(1) == [10, 11]


def test_a_lock_holds_everything_above_it_and_nothing_else():
    tree = grown([1, 2, 3, 4], [1, 2, 5])
    node = tree.end(tree.path(array([1, 2, 3])))
    tree.lock(node)
    assert tree.evictable == 2 and sorted(tree.evict(9)) == [13, 22]
    tree.unlock(node)
    assert sorted(tree.evict(9)) == [10, 11, 12]


@pytest.mark.parametrize("fault", ["lock", "size", "parent"])
def test_the_integrity_check_finds(fault):
    tree = grown([1, 2, 3], [1, 5])
    node = tree.end(tree.path(array([1, 2])))
    if fault == "lock":
        tree.lock(node)
    elif fault == "size":
        tree.size += 1
    else:
        node.parent = Node(array([]), array([]), {}, None)
    with pytest.raises((AssertionError, KeyError)):
        tree.check_integrity([])


def test_an_element_is_a_token_and_the_next_one():
    assert len(pairs([7])) == 0
    assert matches(pairs([1, 2, 3, 4]), pairs([1, 2, 3, 9])) == 2
    assert matches(pairs([1, 2, 3]), pairs([1, 2, 3, 9])) == 2
    assert matches(pairs([2**31 - 1, 1]), pairs([2**31 - 1, 1, 5])) == 1
    assert len({*pairs([1, 2, 1, 3, 2, 1]).tolist()}) == 4
