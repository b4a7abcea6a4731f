"""Shapes of draft trees: who hangs below whom, and which guess each node takes; tokens come later."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from foredraft.core.draft_tree import ROOT
from foredraft.core.errors import ConfigError, require
from foredraft.core.known_names import one_of
from foredraft.core.published_trees import PUBLISHED

MAX_RANK = 255  # as many guesses of one depth as a draft may hold nodes

RankPath = tuple[int, ...]


@dataclass(frozen=True)
class StaticTree:
    """A shape, best node first and parents before their children.

    Attributes:
        parents: Index of each node's parent, [N], -1 for the root.
        ranks: Which guess of its depth each node takes, 0 for the likeliest, [N].
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @classmethod
    def chain(cls, depth: int) -> "StaticTree":
        """The likeliest guess of every depth."""
        return cls(tuple(range(-1, depth - 1)), (0,) * depth)

    @classmethod
    def of_paths(cls, paths: Sequence[RankPath]) -> "StaticTree":
        """The tree of distinct rank paths that hold every path's beginnings, each moved before what continues it."""
        known, place = set(paths), {(): ROOT}
        assert len(known) == len(paths) and all(path[:-1] in known or len(path) == 1 for path in paths)
        for path in paths:
            for length in range(1, len(path) + 1):
                place.setdefault(path[:length], len(place) - 1)
        nodes = list(place)[1:]
        return cls(tuple(place[path[:-1]] for path in nodes), tuple(path[-1] for path in nodes))

    def __len__(self) -> int:
        return len(self.parents)

    @cached_property
    def depths(self) -> list[int]:
        """Depth of each node, [N]: 1 for a child of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    @cached_property
    def width(self) -> int:
        """Guesses of one depth that the tree may ask for."""
        return max(self.ranks, default=0) + 1

    @cached_property
    def families(self) -> list[tuple[int, list[int]]]:
        """Each node that has children, the root first, with its children by rank; parents before their children."""
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            below.setdefault(parent, []).append(node)
        return [(parent, sorted(below[parent], key=self.ranks.__getitem__)) for parent in sorted(below)]

    def cut(self, *, nodes: int, depth: int, width: int | None = None) -> "StaticTree":
        """The first `nodes` nodes that are at most `depth` deep and, where given, of the first `width` ranks."""
        place = {ROOT: ROOT}
        for node, (parent, rank) in enumerate(zip(self.parents, self.ranks, strict=True)):
            fits = self.depths[node] <= depth and (width is None or rank < width)
            if fits and parent in place and len(place) <= nodes:
                place[node] = len(place) - 1
        kept = list(place)[1:]
        return StaticTree(tuple(place[self.parents[node]] for node in kept), tuple(self.ranks[node] for node in kept))


@lru_cache
def token_tree(text: str) -> StaticTree:
    """The tree that `speculative_token_tree` names or spells out.

    Raises `ConfigError` for an unknown name or a list that is no tree.
    """
    if not text.lstrip().startswith("["):
        one_of("speculative_token_tree", text, tuple(PUBLISHED))
        return StaticTree.of_paths([tuple(map(int, word)) for word in PUBLISHED[text].split()])
    try:
        listed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"speculative_token_tree is not JSON: {error.msg} at character {error.pos}") from None
    return StaticTree.of_paths(checked_paths(listed))


def checked_paths(listed: list) -> list[RankPath]:
    """Rank paths as tuples. Raises `ConfigError` unless they make a tree."""
    require(listed != [], "speculative_token_tree is an empty list; give at least the path [0]")
    for path in listed:
        right = isinstance(path, list) and path != [] and all(is_rank(rank) for rank in path)
        require(right, f"speculative_token_tree holds {path!r}; a path is a list of ranks from 0 to {MAX_RANK}")
    paths = [tuple(path) for path in listed]
    for path in paths:
        require(paths.count(path) == 1, f"speculative_token_tree holds the path {list(path)} twice; give it once")
        begun = len(path) == 1 or path[:-1] in paths
        require(begun, f"speculative_token_tree holds {list(path)} without {list(path[:-1])}; add the path before it")
    return paths


def is_rank(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_RANK
