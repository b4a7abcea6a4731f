"""How often the guess of each rank is the token that comes, by depth, learned from every step."""

from collections.abc import Iterable, Sequence

from foredraft.core.speculation_config import MAX_NODES

# What rank 0 is given before anything is seen; rank 1 has a quarter of it, later ranks half the one before.
FIRST = 0.45
PRIOR_WEIGHT = 32  # tokens that what was believed before counts as
MEMORY = 4096  # tokens after which old ones begin to count less


class RankChances:
    """Chance of each rank to be right at each depth, given that the node above was.

    Depth counts from the root of a step. Few tokens are seen at great depths, so a depth's own share is mixed with the
    share over all depths, and that with a prior.

    Attributes:
        hits: Tokens found at each depth and rank, [MAX_NODES, ranks].
        seen: Tokens looked for at each depth, [MAX_NODES].
        tokens: Tokens looked for so far.
        remembered: As many as `seen` holds.
    """

    def __init__(self, ranks: int) -> None:
        self.hits = [[0.0] * ranks for _ in range(MAX_NODES)]
        self.seen = [0.0] * MAX_NODES
        self.tokens, self.remembered = 0, 0.0

    def count(self, guesses: Sequence[list[int] | None], tokens: Sequence[int]) -> None:
        """Look for the token written at each depth among the guesses for it, none where there were none."""
        for depth, (known, token) in enumerate(zip(guesses[:MAX_NODES], tokens[:MAX_NODES], strict=True)):
            if known is None:
                continue
            if token in known:
                self.hits[depth][known.index(token)] += 1.0
            self.seen[depth] += 1.0
            self.tokens += 1
            self.remembered += 1.0
        if self.remembered > MEMORY:
            self.fade()

    def fade(self) -> None:
        self.hits = [[hits / 2 for hits in row] for row in self.hits]
        self.seen = [seen / 2 for seen in self.seen]
        self.remembered /= 2

    def rows(self, depth: int) -> list[list[float]]:
        """Chances of the ranks at the first depths, [depth][ranks]."""
        prior = [FIRST * 0.5 ** (rank + (rank > 0)) for rank in range(len(self.hits[0]))]
        pooled = shares(map(sum, zip(*self.hits, strict=True)), self.remembered, prior)
        return [shares(*own, pooled) for own in zip(self.hits[:depth], self.seen[:depth], strict=True)]


def shares(hits: Iterable[float], seen: float, prior: list[float]) -> list[float]:
    """Share of each rank among what was seen, given what was believed before."""
    return [(own + PRIOR_WEIGHT * before) / (seen + PRIOR_WEIGHT) for own, before in zip(hits, prior, strict=True)]
