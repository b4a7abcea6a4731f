"""A draft whose shape is given: each node takes the guess of its rank, each inner node is run (EAGLE-1, 2401.15077)."""

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from foredraft.core.draft_tree import ROOT
from foredraft.core.static_tree import StaticTree, token_tree
from foredraft.drafters.draft_choice import choices_for
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.growing_tree import GrowingTree
from foredraft.model.slot_pool import SlotPool


@dataclass(eq=False)
class RankedTree(GrowingTree):
    """One request's draft of a fixed shape while it is made.

    A guess that is forbidden or does not exist drops what is below it. Where tokens are drawn, siblings take the draws
    in their order, whatever their ranks: leaving a draw out would bias the law of the later ones.

    Attributes:
        shape: Its nodes, none deeper or more than the task asks for.
        place: Node of the shape that each drafted node stands for.
    """

    shape: StaticTree = field(kw_only=True)
    place: list[int] = field(default_factory=list)

    @property
    def chain(self) -> bool:
        return False

    @property
    def width(self) -> int:
        return self.shape.width

    @property
    def may_stop(self) -> bool:
        return False

    def hang(self, parent: int, tokens: list[int], gains: list[float]) -> list[int]:
        children = self.below[self.place[parent] if parent != ROOT else ROOT]
        drawn = self.laws.get(parent) is not None
        ranks = range(len(children)) if drawn else [self.shape.ranks[child] for child in children]
        ranks = [rank for rank in ranks if rank < len(tokens)]
        fresh = super().hang(parent, [tokens[rank] for rank in ranks], [gains[rank] for rank in ranks])
        self.place += children[: len(fresh)]  # what is impossible comes last
        return fresh

    @cached_property
    def below(self) -> dict[int, list[int]]:
        """Children of each inner node of the shape, by rank; the root is one of them."""
        return dict(self.shape.families)

    def advance(self, fresh: list[int], scores: Tensor | None) -> None:
        """Run every node that has children."""
        self.frontier = [node for node in fresh if self.place[node] in self.below]

    def kept(self) -> list[int]:
        return list(range(len(self.nodes)))


def growing_tree(task: DraftTask, pool: SlotPool, drafter: str, stored: int) -> GrowingTree:
    """The draft that the request's config asks for, with nothing in it yet."""
    text, choice = task.speculation.speculative_token_tree, choices_for(task)
    if text is None:
        return GrowingTree(task, choice, pool, drafter, stored)
    shape = token_tree(text).cut(nodes=task.nodes, depth=task.depth)
    return RankedTree(task, choice, pool, drafter, stored, shape=shape)
