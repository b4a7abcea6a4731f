"""Drafted tokens of one request as a tree in flat arrays."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import Tensor

ROOT = -1


@dataclass(kw_only=True)
class DraftTree:
    """Guesses for the tokens that follow a request's last committed token, the root.

    Node i holds `tokens[i]` and hangs below node `parents[i]`, or below the root where that is -1; parents come before
    their children and siblings hold distinct tokens unless `laws` says they were sampled with replacement. The target
    gives one row of logits for the root and one for each node: row 0 is the root's, row i + 1 is node i's.

    Attributes:
        tokens: Drafted token ids, [N].
        parents: Index of each node's parent, [N], -1 for the root; always smaller than the node's own index.
        drafters: Name of the drafter that made each node, [N].
        laws: For sampled drafts, the law the children of each row were drawn from, [N + 1] rows of float64 [V];
            none where a row has no children. None for drafts that were not sampled.
        replacement: Whether siblings were drawn independently (True) or without replacement, in order (False).
        slots: Cache slots a drafter has already given its nodes, [N]; none lets the engine give them.
        chances: The drafter's own estimate that a node is accepted once its parent is, [N], 0 to 1; none where it has
            no estimate.
        probes: The last so many nodes are no guesses: they ride along in the target's forward, and what the target says
            after them is told to the drafter (Lookahead). Only probes may hang below a probe; they need not be
            distinct from their siblings.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    drafters: list[str] = field(default_factory=list)
    laws: list[Tensor | None] | None = None
    replacement: bool = True
    slots: list[int] | None = None
    chances: list[float] | None = None
    probes: int = 0

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.parents) == len(self.drafters)
        assert all([ROOT <= parent < node for node, parent in enumerate(self.parents)])
        assert self.laws is None or len(self.laws) == len(self.tokens) + 1
        assert self.chances is None or len(self.chances) == len(self.tokens)
        assert 0 <= self.probes <= len(self.tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: list[int], drafter: str, **fields) -> "DraftTree":
        """A tree without branches: each token is the only child of the one before."""
        return cls(tokens=tokens, parents=list(range(-1, len(tokens) - 1)), drafters=[drafter] * len(tokens), **fields)

    @classmethod
    def from_paths(cls, paths: list[list[int]], drafter: str, limit: int) -> "DraftTree":
        """Merge paths from the root into a tree of at most `limit` nodes, earlier paths first."""
        tree, known = cls(), {}
        for path in paths:
            parent = ROOT
            for token in path:
                node = known.get((parent, token))
                if node is None:
                    if len(tree) == limit:
                        return tree
                    node = known[parent, token] = tree.add(token, parent, drafter)
                parent = node
        return tree

    def add(self, token: int, parent: int, drafter: str) -> int:
        """Hang `token` below `parent`; returns the new node's index."""
        assert ROOT <= parent < len(self.tokens)
        self.tokens.append(token)
        self.parents.append(parent)
        self.drafters.append(drafter)
        return len(self.tokens) - 1

    @property
    def guesses(self) -> "DraftTree":
        """What is to be verified: the tree without its probes."""
        return self.only(range(len(self) - self.probes)) if self.probes else self

    def only(self, nodes: Sequence[int]) -> "DraftTree":
        """The tree of some nodes, given in ascending order, each with its parent; a row without children has no law."""
        kept, first_probe = list(nodes), len(self) - self.probes
        place = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
        parents = {self.parents[node] for node in kept}
        laws = self.laws and [self.laws[row + 1] if row in parents else None for row in [ROOT, *kept]]
        return replace(
            self,
            tokens=[self.tokens[node] for node in kept],
            parents=[place[self.parents[node]] for node in kept],
            drafters=[self.drafters[node] for node in kept],
            laws=laws,
            slots=self.slots and [self.slots[node] for node in kept],
            chances=self.chances and [self.chances[node] for node in kept],
            probes=sum(node >= first_probe for node in kept),
        )

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each row in draft order, [N + 1]: the root's first. Read it once the tree is complete."""
        below: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for node, parent in enumerate(self.parents):
            below[parent + 1].append(node)
        return below

    @cached_property
    def depths(self) -> list[int]:
        """Depth of each node, [N]: 1 for a child of the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return depths

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; empty for the root."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def along(self, tokens: Sequence[int]) -> list[int]:
        """Nodes that hold `tokens` one after another from the root on, as far as there are any; siblings differ."""
        nodes, end = [], ROOT
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if len(nodes) == len(tokens):
                break
            if parent == end and token == tokens[len(nodes)]:
                nodes.append(node)
                end = node
        return nodes

    def path_tokens(self, node: int) -> list[int]:
        return [self.tokens[i] for i in self.path(node)]


NO_DRAFT = DraftTree()  # the draft of whoever has none: nobody adds to it
