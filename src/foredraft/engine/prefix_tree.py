"""A radix tree over token sequences; its edges own the cache slots of their positions.

An element of a sequence is a position's token together with the one after it. What a drafter's head stores at a
position is made of both, so texts that share an element share all that can be stored for it. And since a text's last
token begins no element, the token whose logits are wanted is never found in the tree.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from foredraft.drafters.drafter import ResumingDrafter
from foredraft.drafters.prefix_state import PrefixState

TOKEN_BITS = 32
NO_SLOTS = np.empty(0, dtype=np.int64)

States = dict[ResumingDrafter, PrefixState]
Path = list[tuple["Node", int]]  # nodes from the root down, and how many elements of each match


def pairs(tokens: Sequence[int]) -> np.ndarray:
    """The elements of a text, [len(tokens) - 1] int64."""
    ids = np.array(tokens, dtype=np.int64)
    return (ids[:-1] << TOKEN_BITS) | ids[1:]


class Node:
    """An edge of the tree and what hangs below it.

    Attributes:
        keys, slots: Its elements and their cache slots, [length].
        states: What drafters know of its positions.
        parent, children: Its neighbours, children by their first element; only the root has no parent.
        locks: How many users its slots have.
        used: When it was last used, by the tree's clock.
    """

    __slots__ = ("keys", "slots", "states", "parent", "children", "locks", "used")

    def __init__(self, keys: np.ndarray, slots: np.ndarray, states: States, parent: "Node | None"):
        self.keys, self.slots, self.states, self.parent = keys, slots, states, parent
        self.children: dict[int, Node] = {}
        self.locks = self.used = 0

    def __len__(self) -> int:
        return len(self.keys)


class PrefixTree:
    """Nobody else's slots: they come with `add` and leave with `evict`.

    A lock on a node holds it and all above it. Only leaves that nobody has locked are evicted, the one that was used
    least recently first; so everything that is not locked can go.

    Attributes:
        root: A node of no elements.
        leaves: Nodes without children, the root excepted.
        size, locked: Slots of all nodes, and of locked ones.
        clock: Counts uses.
    """

    def __init__(self) -> None:
        self.root = Node(NO_SLOTS, NO_SLOTS, {}, None)
        self.leaves: set[Node] = set()
        self.size = self.locked = self.clock = 0

    def path(self, keys: np.ndarray) -> Path:
        """Where `keys` are found, as far as they are known; only the last node may match in part."""
        node, found, path = self.root, 0, []
        while found < len(keys) and (child := node.children.get(int(keys[found]))) is not None:
            matching = matches(child.keys, keys[found:])
            path.append((child, matching))
            found += matching
            if matching < len(child):
                break
            node = child
        return path

    def end(self, path: Path) -> Node:
        """The node that ends where `path` does; the last one of the path is split for it where it goes on."""
        if not path:
            return self.root
        node, matching = path[-1]
        return node if matching == len(node) else self.split(node, matching)

    def split(self, node: Node, at: int) -> Node:
        """Make the first `at` elements of `node` a node of their own, above it, and return it."""
        upper = Node(node.keys[:at], node.slots[:at], divided(node.states, 0, at), node.parent)
        upper.locks, upper.used = node.locks, node.used
        upper.parent.children[int(upper.keys[0])] = upper
        node.states = divided(node.states, at, len(node))
        node.keys, node.slots, node.parent = node.keys[at:], node.slots[at:], upper
        upper.children[int(node.keys[0])] = node
        return upper

    def add(self, parent: Node, keys: np.ndarray, slots: np.ndarray, states: States) -> Node:
        """Hang new elements below `parent`, none of whose children begins with the first of them."""
        assert len(keys) == len(slots) > 0 and int(keys[0]) not in parent.children
        node = Node(keys, slots, states, parent)
        parent.children[int(keys[0])] = node
        self.leaves.discard(parent)
        self.leaves.add(node)
        self.size += len(node)
        return node

    def use(self, node: Node) -> None:
        """Note that a node and all above it have just been of use."""
        self.clock += 1
        for own in upwards(node):
            own.used = self.clock

    def lock(self, node: Node) -> None:
        """Keep a node and all above it from being evicted until `unlock`."""
        for own in upwards(node):
            self.locked += 0 if own.locks else len(own)
            own.locks += 1

    def unlock(self, node: Node) -> None:
        for own in upwards(node):
            assert own.locks
            own.locks -= 1
            self.locked -= 0 if own.locks else len(own)

    @property
    def evictable(self) -> int:
        return self.size - self.locked

    def evict(self, count: int) -> list[int]:
        """Drop leaves until `count` slots are free or none is left that may go; the slots."""
        order = [(leaf.used, id(leaf), leaf) for leaf in self.leaves if not leaf.locks]
        heapify(order)
        slots: list[int] = []
        while order and len(slots) < count:
            _, _, leaf = heappop(order)
            slots += leaf.slots.tolist()
            parent = self.drop(leaf)
            if parent in self.leaves and not parent.locks:
                heappush(order, (parent.used, id(parent), parent))
        return slots

    def drop(self, leaf: Node) -> Node:
        """Take a leaf out of the tree; its parent, which may now be one."""
        parent = leaf.parent
        del parent.children[int(leaf.keys[0])]
        self.leaves.remove(leaf)
        self.size -= len(leaf)
        if not parent.children and parent is not self.root:
            self.leaves.add(parent)
        return parent

    def nodes(self) -> Iterator[Node]:
        """All but the root, parents before children."""
        waiting = [self.root]
        while waiting:
            children = list(waiting.pop().children.values())
            yield from children
            waiting += children

    def held_slots(self) -> np.ndarray:
        return np.concatenate([NO_SLOTS, *(node.slots for node in self.nodes())])

    def evictable_slots(self) -> np.ndarray:
        return np.concatenate([NO_SLOTS, *(node.slots for node in self.nodes() if not node.locks)])

    def check_integrity(self, locked: Sequence[Node]) -> None:
        """Assert that the tree is one, and that each lock belongs to one of the nodes `locked`."""
        users = [id(own) for node in locked for own in upwards(node)]
        for node in self.nodes():
            assert len(node) == len(node.slots) > 0
            assert node.parent.children[int(node.keys[0])] is node
            assert node.locks == users.count(id(node)), "a lock was not given back"
            assert (node in self.leaves) is not node.children
            assert all(child.used <= node.used for child in node.children.values())
            assert all(state.known <= len(node) for state in node.states.values())
        nodes = list(self.nodes())
        assert self.size == sum(map(len, nodes))
        assert self.locked == sum(len(node) for node in nodes if node.locks)
        assert self.leaves <= set(nodes)


def upwards(node: Node) -> Iterator[Node]:
    """A node and all above it but the root."""
    while node.parent is not None:
        yield node
        node = node.parent


def matches(first: np.ndarray, second: np.ndarray) -> int:
    """How many elements two sequences begin with in common."""
    shorter = min(len(first), len(second))
    same = first[:shorter] == second[:shorter]
    return shorter if same.all() else int(same.argmin())


def divided(states: States, start: int, stop: int) -> States:
    """What drafters know of part of a node."""
    return {drafter: state.part(start, stop).owned() for drafter, state in states.items()}
