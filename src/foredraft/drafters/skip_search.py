"""The search for sublayers whose absence costs a draft little (SWIFT, Xia et al. 2024), and where its result is kept.

The search proposes sets and is told how many of the target's tokens each finds: first a few that do well in many
models, then sets one or two sublayers away from the best so far. A few dozen tokens flatter some set in every hundred,
so a set is judged by the lower end of its agreement over all windows of text, and those that may be better are measured
again. It knows no model; whoever asks it measures.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import sqrt
from random import Random

from foredraft.core.kept_file import KeptFile
from foredraft.model.layer_skips import LayerSkips, ReadShares

PATIENCE = 128  # measurements without a new best before the search ends
CONTENDERS = 5  # sets measured again in each window
KEPT_SETS = 8


def expected_speed(agreement: float, share: float, depth: int) -> float:
    """Tokens in the time of one plain step that chains of `depth` drafts give.

    A draft is accepted with chance `agreement` where the one before it was, a draft forward takes `share` of a whole
    one: (1 + sum of agreement^i for i = 1 .. depth) / (1 + depth share), Leviathan et al. 2023.
    """
    accepted = sum(agreement**i for i in range(1, depth + 1))
    return (1 + accepted) / (1 + depth * share)


def structured(layers: int) -> list[LayerSkips]:
    """Sets worth a try in any model of so many layers, the first one first.

    The middle of a model can spare most, attentions more than MLPs; its first and last layers can spare least.
    """
    quarter = max(layers // 4, 1)
    middle, core = range(quarter, layers - quarter), range(3 * layers // 8, layers - 3 * layers // 8)
    sets = [
        LayerSkips(frozenset(middle)),
        LayerSkips(frozenset(core)),
        LayerSkips(frozenset(middle), frozenset(core)),
        LayerSkips(frozenset(core), frozenset(core)),
        LayerSkips(frozenset(middle[::2]), frozenset(middle[1::2])),
        *(LayerSkips.after(exit_layer, layers) for exit_layer in (3 * quarter, 2 * quarter, quarter)),
    ]
    return list(dict.fromkeys(sets))


@dataclass(slots=True)
class Count:
    """Tokens a set was measured on, how many of them it found, and what share of a whole forward it takes."""

    share: float
    found: int = 0
    rows: int = 0

    def agreement(self, errors: float) -> float:
        """Estimated chance to find a token, so many standard errors off the middle, 0 to 1."""
        middle = (self.found + 1) / (self.rows + 2)  # Laplace's rule: a few tokens prove no certainty
        return min(max(middle + errors * sqrt(middle * (1 - middle) / (self.rows + 2)), 0.0), 1.0)


class SkipSearch:
    """A search under way.

    Attributes:
        shares: What each sublayer costs.
        seconds: Time its measurements may take in all.
        spent: Seconds they have taken.
        fruitless: Measurements since the best set changed.
        best: The best set so far, or the one to draft with until one is measured.
        counts: What every set measured has found.
        depth: Length of the chains whose speed is searched for.
        here: Sets measured in the current window of text.
    """

    def __init__(self, shares: ReadShares, *, seconds: float):
        self.shares, self.seconds = shares, seconds
        self.spent, self.fruitless = 0.0, 0
        self.counts: dict[LayerSkips, Count] = {}
        self.best, *self.waiting = structured(len(shares.attention))
        self.depth, self.here, self.again = 1, set(), 0
        self.generator = Random(0)
        self.moves = self.neighbours()

    @property
    def finished(self) -> bool:
        return self.spent >= self.seconds or self.fruitless >= PATIENCE

    def begin_window(self, depth: int) -> None:
        """What is told from now on was measured on another text, in chains of `depth`."""
        self.depth, self.here, self.again = depth, set(), 0

    def candidate(self) -> LayerSkips | None:
        """The set to measure next; none where the current window has no more to tell."""
        if self.best not in self.here:
            return self.best
        if self.again < CONTENDERS and (hopeful := self.contenders()):
            self.again += 1
            return max(hopeful, key=self.speed)
        while self.waiting:
            if (skips := self.waiting.pop(0)) not in self.counts:
                return skips
        return next((skips for skips in self.moves if skips not in self.counts), None)

    def contenders(self) -> list[LayerSkips]:
        """Sets that may be better than the best and are not measured in this window yet."""
        bar = self.speed(self.best, -1)
        return [skips for skips in self.counts if skips not in self.here and self.speed(skips, 1) > bar]

    def speed(self, skips: LayerSkips, errors: float = 0.0) -> float:
        """Expected speed of a measured set, its agreement taken so many standard errors off the middle."""
        count = self.counts[skips]
        return expected_speed(count.agreement(errors), count.share, self.depth)

    def tell(self, skips: LayerSkips, found: int, rows: int, seconds: float) -> bool:
        """Learn that `skips` found so many of `rows` tokens, in so many seconds; whether another set is best now."""
        count = self.counts.setdefault(skips, Count(self.shares.of(skips)))
        count.found, count.rows = count.found + found, count.rows + rows
        self.here.add(skips)
        self.spent += seconds
        before, self.best = self.best, max(self.counts, key=lambda known: self.speed(known, -1))
        if self.best == before:
            self.fruitless += 1
            return False
        self.fruitless, self.moves = 0, self.neighbours()
        return True

    def neighbours(self) -> Iterator[LayerSkips]:
        """Sets that differ from the best in one sublayer, then in two, each kind in random order."""
        best, layers = self.best, range(len(self.shares.attention))
        flips = [LayerSkips(attention=frozenset([layer])) for layer in layers]
        flips += [LayerSkips(mlp=frozenset([layer])) for layer in layers]
        self.generator.shuffle(flips)
        yield from (best ^ flip for flip in flips)
        pairs = list(combinations(flips, 2))
        self.generator.shuffle(pairs)
        yield from (best ^ first ^ second for first, second in pairs)

    def record(self) -> dict:
        """Where the search stands: its best sets and what it has spent."""
        best = sorted(self.counts, key=lambda skips: -self.speed(skips, -1))[:KEPT_SETS]
        sets = [{"skips": str(s), "found": self.counts[s].found, "rows": self.counts[s].rows} for s in best]
        return {"spent": self.spent, "fruitless": self.fruitless, "depth": self.depth, "sets": sets}

    def resume(self, record: dict) -> None:
        """Go on from `record`. Raises `LookupError`, `TypeError` or `ValueError` where it is none of this model's."""
        counts = {}
        for kept in record["sets"]:
            skips = LayerSkips.parse(str(kept["skips"]), len(self.shares.attention))
            counts[skips] = Count(self.shares.of(skips), int(kept["found"]), int(kept["rows"]))
            if not 0 <= counts[skips].found <= counts[skips].rows:
                raise ValueError(f"{kept['found']} of {kept['rows']} tokens found")
        spent, fruitless, depth = float(record["spent"]), int(record["fruitless"]), int(record["depth"])
        if counts:
            self.counts, self.best, self.waiting = counts, next(iter(counts)), []
            self.spent, self.fruitless, self.depth = spent, fruitless, depth
            self.moves = self.neighbours()


class KeptSearch(KeptFile):
    """Keeps a model's search on disk, so that it is not made twice."""

    def __init__(self, model: str, weight_bytes: int, layers: int):
        """What is found for the model at `model`, a path or hub id, of so many bytes and layers."""
        super().__init__("skips", f"{model}\n{weight_bytes}\n{layers}")

    def load(self, search: SkipSearch) -> None:
        """Let `search` go on from the file; a file that is missing or not understood changes nothing."""
        try:
            search.resume(self.read())
        except (OSError, LookupError, TypeError, ValueError):
            return

    def save(self, search: SkipSearch) -> None:
        """Write down where `search` stands; where the folder cannot be written, the next start searches again."""
        self.write(search.record(), "which sublayers to leave out cannot be kept for the next start")
