"""Which nodes of a draft are worth their rows in the target's forward."""

from collections.abc import Callable

SMALL = 4  # numbers of nodes up to this one are tried, and then
STRIDE = 4  # multiples of this one


def worthwhile(rates: list[float], row_price: float) -> list[int]:
    """Nodes whose chance is worth a row, in ascending order: each with its parent, which is never less likely."""
    return [node for node, rate in enumerate(rates) if rate > row_price]


def best_nodes(
    rates: list[float], seconds: Callable[[int], float], *, sure: float = 1.0, stride: int = STRIDE
) -> list[int]:
    """Those of the likeliest nodes that make (`sure` tokens + their chances) / seconds(their number) largest, [N]
    indices in ascending order, each with its parent.

    Numbers beyond `SMALL` are tried in strides: this runs in every step.
    """
    ranked = sorted(range(len(rates)), key=rates.__getitem__, reverse=True)  # of equals the parent stays first
    best, top, tokens = 0, sure / seconds(0), sure
    for count, node in enumerate(ranked, start=1):
        tokens += rates[node]
        if count <= SMALL or count % stride == 0 or count == len(ranked):
            speed = tokens / seconds(count)
            if speed > top:
                best, top = count, speed
    return sorted(ranked[:best])


def paying(rates: list[float], seconds: Callable[[int], float], row_price: float | None) -> list[int]:
    """Nodes of one request's draft worth verifying: by the price of a row in tokens, or exactly where the request is
    alone and there is none."""
    return best_nodes(rates, seconds) if row_price is None else worthwhile(rates, row_price)
