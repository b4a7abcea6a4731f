"""Which nodes of a draft are worth their rows in the target's forward."""

from collections.abc import Callable

from foredraft.core.draft_tree import ROOT, DraftTree

SMALL = 4  # counts up to this one, and its multiples, are tried

Rates = Callable[[DraftTree], list[float]]  # how often each node of a tree is accepted once its parent is


def path_rates(tree: DraftTree, rates_of: Rates) -> list[float]:
    """Chance of each node to be accepted together with all its ancestors, [N]; `tree` states chances."""
    rates = rates_of(tree)
    for node, parent in enumerate(tree.parents):
        if parent != ROOT:
            rates[node] *= rates[parent]
    return rates


def ranked_nodes(rates: list[float]) -> list[int]:
    """Nodes by falling path rate, a parent always before its children."""
    return sorted(range(len(rates)), key=lambda node: (-rates[node], node))


def worthwhile(rates: list[float], row_price: float) -> list[int]:
    """Nodes whose chance is worth a row, in ascending order: each with its parent, which is never less likely."""
    return [node for node, rate in enumerate(rates) if rate > row_price]


def best_count(rates: list[float], seconds: Callable[[int], float]) -> tuple[int, float]:
    """How many of the likeliest nodes make (1 + their chances) / seconds(count) largest, and their chances' sum.

    Large counts are tried in steps: this runs in every step.
    """
    best, best_gain, top, gain = 0, 0.0, 1.0 / seconds(0), 0.0
    for count, rate in enumerate(sorted(rates, reverse=True), start=1):
        gain += rate
        if count <= SMALL or count % SMALL == 0 or count == len(rates):
            speed = (1.0 + gain) / seconds(count)
            if speed > top:
                best, best_gain, top = count, gain, speed
    return best, best_gain
