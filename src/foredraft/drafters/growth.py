"""When a draft that grows level by level has grown enough, and which of its nodes are worth verifying."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp


@dataclass(frozen=True, slots=True)
class Growth:
    """What it is worth to run a drafter behind a drafted node, and what it costs, in tokens.

    Attributes:
        candour: The power of a path's stated chance that is its chance of being accepted.
        row: What another drafted node costs in the target's forward.
        run: What the run costs, which takes about as long for the drafts of one request as for those of all: so all
            that share it must be worth it together.
        onward: How likely a node's child is accepted once the node is: what is worth a row may have no child that is.
    """

    candour: float = 1.0
    row: float = 0.0
    run: float = 0.0
    onward: float = 1.0

    def worth(self, score: float) -> float:
        """Of the row of a node whose path has the log-chance `score`; below 0 it is not kept."""
        return exp(self.candour * score) - self.row

    def worth_behind(self, score: float) -> float:
        """The same of the row of its child; below 0 the node is not run."""
        return self.onward * exp(self.candour * score) - self.row

    @property
    def least(self) -> float:
        """The stated chance of a path below which its last node is not worth its row."""
        return self.row ** (1.0 / self.candour) if self.row > 0 else 0.0


FREE = Growth()


def worth_a_run(levels: Iterable[tuple[Growth, Iterable[float]]]) -> bool:
    """Whether to run the drafter once more behind the nodes of such log-chances, those of each draft."""
    worth = cost = 0.0
    for growth, scores in levels:
        worth += sum(map(growth.worth_behind, scores))
        cost = max(cost, growth.run)
    return worth >= cost
