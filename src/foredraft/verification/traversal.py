"""Traversal verification: a tree is judged from its leaves up, whole paths before their parts."""

from dataclasses import dataclass

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.draft_law import acceptance, draft_law
from foredraft.verification.draws import Draws, Law
from foredraft.verification.residual import excess, normalised, reach_after


@dataclass(slots=True)
class Row:
    """A row on the path under judgement.

    Attributes:
        index: Which row of the tree.
        reach: Chance to end here, given that nothing below and to the left was kept.
        target: What the target's law has become; none until a child asks for it.
        refused: How many of its children are out.
    """

    index: int
    reach: float
    target: Tensor | None = None
    refused: int = 0


def traversal(tree: DraftTree, law: Law, draws: Draws) -> Verdict:
    """Descend leftmost to a leaf and keep the path to it with chance `reach`; else drop the leaf and go on from above.

    A child's reach is min(1, reach p(x) / q(x)). A dropped child leaves its parent with the excess
    r = max(reach p - q, 0), reach = sum(r) / (sum(r) + 1 - reach) and p = norm(r); a row whose children are all out is
    a leaf itself, and the root always stands. On a chain this is block verification; on sampled trees it keeps at
    least as many tokens in expectation as rejection down the tree (Weng et al. 2025, 2505.12398). Exact for children
    drawn independently or without replacement.
    """
    path = [Row(0, 1.0)]
    while True:
        descend(path, tree, law)
        leaf = path[-1]
        if len(path) == 1 or draws.coin(leaf.reach):
            token = draws.token(leaf.index) if leaf.target is None else draws.residual(leaf.target)
            return Verdict(tree.path(leaf.index - 1), token)
        path.pop()
        drop_child(path[-1], tree)


def descend(path: list[Row], tree: DraftTree, law: Law) -> None:
    """Extend `path` by first children that are still in, down to a leaf."""
    while (row := path[-1]).refused < len(tree.children[row.index]):
        if row.target is None:
            row.target = law(row.index)
        child = tree.children[row.index][row.refused]
        draft = draft_law(tree, row.index, row.refused, row.target)
        path.append(Row(child + 1, acceptance(row.target, draft, tree.tokens[child], row.reach)))


def drop_child(row: Row, tree: DraftTree) -> None:
    """Take the first child that is still in out of `row`: its share of the target's law was offered and refused."""
    draft = draft_law(tree, row.index, row.refused, row.target)
    uncovered = excess(row.target, draft, row.reach)
    row.reach = reach_after(uncovered.sum().item(), row.reach)
    row.target = normalised(uncovered, row.target)
    row.refused += 1
