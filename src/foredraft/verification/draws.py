"""Where acceptance rules get their randomness from."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict


class Draws(Protocol):
    """The source of every random decision a rule takes; decisions are independent of one another and of the drafts.

    Rows are the tree's: row 0 is the root, row i + 1 is node i.
    """

    def token(self, row: int) -> int:
        """The target's own token at `row`, drawn from that row's law.

        Noise belongs to the position, so rows of equal depth share theirs: a rule asks for one row of a depth at most.
        """

    def coin(self, probability: float) -> bool:
        """True with `probability`, from 0 to 1."""

    def residual(self, weights: Tensor) -> int:
        """A token in proportion to `weights`, float64 [V], none negative and not all 0."""


Law = Callable[[int], Tensor]
"""The target's processed distribution at a row, float64 [V]; computed at each call, and not to be written into."""

Accept = Callable[[DraftTree, Law, Draws], Verdict]
"""An acceptance rule: which path of a tree to keep, and the token that follows it."""
