"""How often the guess of each rank is the token that comes, by depth, learned from every step."""

import numpy as np

from foredraft.core.speculation_config import MAX_NODES

FIRST = (
    0.45  # what rank 0 is given before anything is seen; rank 1 has a quarter of it, later ranks half the one before
)
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
    """

    def __init__(self, ranks: int) -> None:
        self.hits = np.zeros((MAX_NODES, ranks))
        self.seen = np.zeros(MAX_NODES)
        self.tokens = 0

    def count(self, guesses: np.ndarray, tokens: list[int]) -> None:
        """Look for the token written at each depth among the guesses for it, [D, ranks], -1 where there were none."""
        depths = min(len(tokens), MAX_NODES)
        right = guesses[:depths] == np.array(tokens[:depths])[:, None]
        known = guesses[:depths, 0] >= 0
        self.hits[:depths] += right
        self.seen[:depths] += known
        self.tokens += int(known.sum())
        if self.seen.sum() > MEMORY:
            self.hits /= 2
            self.seen /= 2

    def rows(self, depth: int) -> list[list[float]]:
        """Chances of the ranks at the first depths, [depth][ranks]."""
        ranks = np.arange(self.hits.shape[1])
        prior = FIRST * 0.5 ** (ranks + (ranks > 0))
        pooled = (self.hits.sum(0) + PRIOR_WEIGHT * prior) / (self.seen.sum() + PRIOR_WEIGHT)
        own = self.hits[:depth] + PRIOR_WEIGHT * pooled
        return (own / (self.seen[:depth, None] + PRIOR_WEIGHT)).tolist()
