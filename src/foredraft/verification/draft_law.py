"""The laws drafts were drawn from, as acceptance rules weigh them against the target's."""

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree


def draft_law(tree: DraftTree, row: int, rank: int, target: Tensor) -> Tensor:
    """The law the `rank`-th child of `row` was drawn from, given the siblings before it, [V].

    All on its token for a draft that was not sampled. Without replacement, siblings before it can no longer be drawn.
    `target` is the target's law at that row; it gives dtype and size.
    """
    siblings = [tree.tokens[child] for child in tree.children[row]]
    if tree.laws is None:
        return one_hot(siblings[rank], target)
    law = tree.laws[row]
    assert law is not None and law.shape == target.shape, "a row with sampled children must hold their law over [V]"
    if tree.replacement or rank == 0:
        return law
    law = law.index_fill(0, torch.tensor(siblings[:rank], device=law.device), 0.0)
    return law / law.sum()


def one_hot(token: int, like: Tensor) -> Tensor:
    law = torch.zeros_like(like)
    law[token] = 1.0
    return law


def acceptance(target: Tensor, draft: Tensor, token: int, reach: float = 1.0) -> float:
    """min(1, reach * target(token) / draft(token)), the chance that a drafted token is kept."""
    drafted = draft[token].item()
    assert drafted > 0, f"token {token} was drafted but has probability {drafted} under its draft law"
    return min(1.0, reach * target[token].item() / drafted)
