"""When drafts that grow level by level have grown enough, and which of their nodes are worth verifying."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Growth:
    """What it is worth to run a drafter behind a drafted node, and what it costs, in tokens.

    Attributes:
        candour: The power of a path's stated chance that is its chance of being accepted.
        row: What another drafted node costs in the target's forward.
        run: What the run costs, which takes about as long for the drafts of one request as for those of all: so all
            that share it must be worth it together.
        onward: How likely a node's child is accepted once the node is: what is worth a row may have no child that is.
        steps: What the target's step costs with so many nodes, from none on, of all chains that grow together, never
            less than with fewer: rows come in blocks, of which the first costs all and the others nothing. Empty where
            each costs `row`.
    """

    candour: float = 1.0
    row: float = 0.0
    run: float = 0.0
    onward: float = 1.0
    steps: tuple[float, ...] = ()

    @property
    def free(self) -> bool:
        """Whether nothing is paid for what is drafted together: such a draft grows as far as it may."""
        return not self.steps and not self.run

    def chance(self, score: float) -> float:
        """How likely a path of the log-chance `score` is accepted."""
        return exp(self.candour * score)

    def worth(self, score: float) -> float:
        """Of the row of a node whose path has the log-chance `score`; below 0 it is not kept."""
        return self.chance(score) - self.row

    def worth_behind(self, score: float) -> float:
        """The same of the row of its child; below 0 the node is not run."""
        return self.onward * self.chance(score) - self.row

    @property
    def least(self) -> float:
        """The stated chance of a path below which its last node is not worth its row."""
        return self.row ** (1.0 / self.candour) if self.row > 0 else 0.0

    def step(self, nodes: int) -> float:
        """What a step costs with so many nodes, on average as much for each beyond the last that is known."""
        last = len(self.steps) - 1
        return self.steps[nodes] if nodes <= last else self.steps[last] * nodes / last


FREE = Growth()


class End(NamedTuple):
    """The last node of a chain that may go on.

    Attributes:
        growth: What ends it.
        score: Log-chance of its path.
        left: Levels that it may still grow.
    """

    growth: Growth
    score: float
    left: int


def worth_a_run(levels: Iterable[tuple[Growth, Iterable[float]]]) -> bool:
    """Whether to run the drafter once more behind the nodes of such log-chances, those of each draft that has any. One
    that is free is run anyhow, and the others with it at no cost."""
    worth = cost = 0.0
    for growth, scores in levels:
        if growth.free:
            return True
        worth += sum(map(growth.worth_behind, scores))
        cost = max(cost, growth.run)
    return worth >= cost


def worth_growing(ends: Sequence[End], nodes: int, costs: Growth, free: Sequence[int] = ()) -> list[int]:
    """Those of the `ends` of chains that grow together, of `nodes` nodes so far, to run the drafter behind; beside
    chains that are `free` and grow by so many levels anyhow.

    The likeliest of them, and so many levels, that what these may bring less what the step and the runs then cost, by
    `costs`, is most; none where that is below nothing. Nobody is bound to grow them all: after the next level it is
    asked anew.
    """
    chances = [end.growth.onward * end.growth.chance(end.score) for end in ends]
    ordered = sorted(range(len(ends)), key=lambda place: -chances[place])
    best, going, gains, paid = 0.0, 0, [0.0] * len(ends), max(free, default=0)
    for levels in range(1, max((end.left for end in ends), default=0) + 1):
        gain, rows = 0.0, 0
        beside = nodes + sum(min(levels, left) for left in free)
        runs = max(0, levels - paid) * costs.run
        for count, place in enumerate(ordered, start=1):
            end = ends[place]
            if levels <= end.left:
                gains[place] += chances[place]
                chances[place] *= end.growth.onward
            gain += gains[place]
            rows += min(levels, end.left)
            value = gain - (costs.step(beside + rows) - costs.step(beside)) - runs
            if value >= best:
                best, going = value, count
    return sorted(ordered[:going])


def least_worth_a_row(chances: Sequence[float], costs: Growth, beside: int = 0) -> float:
    """The chance below which nodes of chains that have grown together are not verified, given those of all nodes but
    the ones `beside` them that are verified anyhow."""
    best, least, gain = 0.0, float("inf"), 0.0
    for count, chance in enumerate(sorted(chances, reverse=True), start=1):
        gain += chance
        value = gain - (costs.step(beside + count) - costs.step(beside))
        if value >= best:
            best, least = value, chance
    return least
