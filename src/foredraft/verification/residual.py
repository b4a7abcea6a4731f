"""What the target still has to say where a draft was refused."""

from torch import Tensor


def excess(target: Tensor, draft: Tensor, reach: float = 1.0) -> Tensor:
    """max(reach * target - draft, 0), [V]: the mass that drafts fail to cover."""
    return (reach * target - draft).clamp_(min=0.0)


def normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """`weights` scaled to sum to 1; `otherwise` where they sum to 0, as rounding can leave them when laws agree."""
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def reach_after(uncovered: float, reach: float) -> float:
    """Chance of stopping at a node reached with `reach` once the draft below it is out.

    `uncovered` is the sum of the excess there. Where that is 0 and `reach` is 1 the laws agree, and nothing is lost.
    """
    total = uncovered + (1.0 - reach)
    return uncovered / total if total > 0 else 1.0
