"""The best tree of guesses whose depths do not look at each other (DDTree, 2604.12989; Medusa's trees, 2401.10774).

A path's chance is then the product of its guesses' chances, so best-first search by that product finds the best tree of
any size: no node is worth more than its parent or than its better sibling.
"""

from heapq import heappop, heappush
from math import inf, log

from foredraft.core.draft_tree import ROOT
from foredraft.core.static_tree import StaticTree


def best_first(gains: list[list[float]], nodes: int) -> StaticTree:
    """The tree of at most `nodes` nodes with the largest sum of chances.

    `gains[d][r]` is the log-chance, never positive, of guess r at depth d + 1, falling with r. A node is offered only
    once its parent is taken, so no tie can leave it without one; of equal chances the shallower comes first.
    """
    parents, ranks, heap = [], [], []

    def offer(depth: int, rank: int, parent: int, base: float) -> None:
        if depth < len(gains) and rank < len(gains[depth]) and gains[depth][rank] > -inf:
            # Ranks and parents are unique together, so a comparison never ties beyond them.
            heappush(heap, (-(base + gains[depth][rank]), depth, parent, rank, base))

    offer(0, 0, ROOT, 0.0)
    while heap and len(parents) < nodes:
        cost, depth, parent, rank, base = heappop(heap)
        parents.append(parent)
        ranks.append(rank)
        offer(depth, rank + 1, parent, base)
        offer(depth + 1, 0, len(parents) - 1, -cost)
    return StaticTree(tuple(parents), tuple(ranks))


def measured_tree(accuracies: tuple[tuple[float, ...], ...], *, nodes: int, depth: int, width: int) -> StaticTree:
    """The static tree with the most expected hits: nodes added by the product of their measured accuracies.

    `accuracies[d][r]` is the share of texts where guess r at depth d + 1 was right. Guesses are ranked by it, as a
    small sample may find a later one right more often.
    """
    order = [sorted(range(len(row)), key=lambda rank, row=row: -row[rank])[:width] for row in accuracies[:depth]]
    shares = zip(accuracies, order, strict=False)
    shape = best_first([[logarithm(row[rank]) for rank in ranks] for row, ranks in shares], nodes)
    ranks = [order[depth - 1][rank] for depth, rank in zip(shape.depths, shape.ranks, strict=True)]
    return StaticTree(shape.parents, tuple(ranks))


def logarithm(share: float) -> float:
    return log(share) if share > 0 else -inf
