"""Rejection sampling down a tree."""

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.draft_law import acceptance, draft_law
from foredraft.verification.draws import Draws, Law
from foredraft.verification.residual import excess, normalised


def tree_rejection(tree: DraftTree, law: Law, draws: Draws) -> Verdict:
    """Try the children of each row in draft order; descend into the first one kept, else draw from what p has left.

    A child x ~ q is kept with chance min(1, p(x) / q(x)); each refusal turns p into norm(max(p - q, 0)). Children drawn
    independently share one q (Miao et al. 2023, 2305.09781); drawn without replacement, each has the q that its earlier
    siblings left over (Chen et al. 2024, 2402.12374). Exact for both, and for drafts that were not sampled.
    """
    path: list[int] = []
    row = 0
    while tree.children[row]:
        child, left = first_kept(tree, row, law(row), draws)
        if child is None:
            return Verdict(path, draws.residual(left))
        path.append(child)
        row = child + 1
    return Verdict(path, draws.token(row))


def first_kept(tree: DraftTree, row: int, target: Tensor, draws: Draws) -> tuple[int | None, Tensor]:
    """The first child of `row` that is kept, none if all are refused, and what the target's law has become by then."""
    for rank, child in enumerate(tree.children[row]):
        draft = draft_law(tree, row, rank, target)
        if draws.coin(acceptance(target, draft, tree.tokens[child])):
            return child, target
        target = normalised(excess(target, draft), target)
    return None, target
