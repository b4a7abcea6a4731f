"""Where in a predicted text an answer stands, found again after each place where the two part."""

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass
from functools import cached_property

LONGEST = 8  # tokens of the answer that are looked for in the prediction
CONFIRMED = 4  # tokens in a row that must match before the place where the texts parted is given up
NEAR = 16  # a single token is looked for this far ahead; farther away it says nothing
BACKWARD = 4  # a token back costs as much as so many ahead: most edits keep a text's order
PRIOR_WEIGHT = 8  # tokens that what was believed before counts as
MEMORY = 1024  # tokens after which old ones begin to count less

# Kinds of evidence for a place. From 0 to 6 the bit length of the run of tokens that match before it:
# none, 1, 2 to 3, 4 to 7, 8 to 15, 16 to 31, more.
LONG_RUN = 6
REPLACED = 7  # as far behind the parting as the answer has written since
INSERTED = 8  # at the parting: what was written since is not in the prediction
ELSEWHERE = 9  # matches the last tokens too, but less well than the best place
PRIOR = (0.6, 0.6, 0.75, 0.85, 0.9, 0.95, 0.98, 0.25, 0.2, 0.3)  # chances before anything is seen, by kind


@dataclass(frozen=True, slots=True)
class Place:
    """A token of the prediction that may be the answer's next.

    Attributes:
        index: Its index.
        evidence: What speaks for it.
        run: Tokens that match before it; 0 where the place is only supposed.
    """

    index: int
    evidence: int
    run: int = 0


def followed(index: int, run: int) -> Place:
    """A place after `run` tokens that match."""
    return Place(index, min(run.bit_length(), LONG_RUN), run)


class PlaceChances:
    """How often the token at a place was the one written, by the evidence for the place; learned from every token."""

    def __init__(self) -> None:
        self.hits = [0.0] * len(PRIOR)
        self.seen = [0.0] * len(PRIOR)

    def count(self, evidence: int, hit: bool) -> None:
        self.hits[evidence] += hit
        self.seen[evidence] += 1
        if self.seen[evidence] > MEMORY:
            self.hits[evidence] /= 2
            self.seen[evidence] /= 2

    def of(self, evidence: int) -> float:
        """The share of hits, what was believed before mixed in."""
        hits = self.hits[evidence] + PRIOR_WEIGHT * PRIOR[evidence]
        return hits / (self.seen[evidence] + PRIOR_WEIGHT)


class GramIndex:
    """Where each n-gram of a text ends, n from 1 to LONGEST; a gram that ends at i is tokens[i - n : i]."""

    def __init__(self, tokens: list[int]) -> None:
        self.ends: list[dict[int, list[int]]] = []  # by hash of a gram; a collision costs no more than a bad draft
        for n in range(1, LONGEST + 1):
            ends: dict[int, list[int]] = {}
            grams = zip(*(tokens[i:] for i in range(n)), strict=False)
            for end, gram in enumerate(map(hash, grams), start=n):
                ends.setdefault(gram, []).append(end)
            self.ends.append(ends)

    def around(self, gram: tuple[int, ...], place: int) -> list[int]:
        """The gram's nearest end at or after `place` and its nearest before, the one that costs less to go to first."""
        ends = self.ends[len(gram) - 1].get(hash(gram), [])
        after = bisect_left(ends, place)
        near = [*ends[after : after + 1], *ends[max(after - 1, 0) : after]]
        return sorted(near, key=lambda end: end - place if end >= place else BACKWARD * (place - end))


class Alignment:
    """Follows an answer through its prediction, token by token, in time that depends on neither's length.

    Attributes:
        tokens: The prediction.
        anchor: Index of the token after the last place where the texts surely agreed.
        run: Tokens that matched in a row up to the anchor.
        strayed: Tokens written since the texts parted; 0 while the answer follows the prediction.
        recent: The answer's last tokens.
        places: Where the answer may stand while it has strayed, the best match first.
    """

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.anchor = self.run = self.strayed = 0
        self.recent: deque[int] = deque(maxlen=LONGEST)
        self.places: list[Place] = []

    @cached_property
    def index(self) -> GramIndex:
        """Made at the first parting: an answer that is predicted right never needs it."""
        return GramIndex(self.tokens)

    def push(self, token: int, chances: PlaceChances) -> None:
        """Take in the answer's next token."""
        for place in self.candidates(several=False):
            chances.count(place.evidence, self.tokens[place.index] == token)
        self.recent.append(token)
        if not self.strayed and self.tokens[self.anchor : self.anchor + 1] == [token]:
            self.anchor += 1
            self.run += 1
        else:
            self.search()

    def search(self) -> None:
        """Find where the answer goes on in the prediction after a token that was not the one expected."""
        self.strayed += 1
        matches = self.matches()
        if matches and matches[0].run >= CONFIRMED:
            self.anchor, self.run, self.strayed = matches[0].index, matches[0].run, 0
        else:
            supposed = [Place(self.anchor + self.strayed, REPLACED), Place(self.anchor, INSERTED)]
            self.places = [*matches[:1], *supposed, *matches[1:]]

    def matches(self) -> list[Place]:
        """Places after the answer's last tokens, longest match first, each once; all but the best are elsewhere."""
        recent, found = list(self.recent), {}
        for n in range(len(recent), 0, -1):
            for end in self.index.around(tuple(recent[-n:]), self.anchor):
                if n > 1 or 0 <= end - self.anchor <= NEAR:
                    found.setdefault(end, n)
        best = [followed(end, n) for end, n in list(found.items())[:1]]
        return best + [Place(end, ELSEWHERE, n) for end, n in list(found.items())[1:]]

    def candidates(self, *, several: bool) -> list[Place]:
        """Where the answer may stand, each place once; while it follows one, only that unless `several` are wanted."""
        if self.strayed:
            places = self.places
        else:
            places = [followed(self.anchor, self.run)]
            # A match as long as those that are looked for is rarely wrong; the others need no look.
            if several and 0 < self.run < LONGEST:
                places += [Place(place.index, ELSEWHERE, place.run) for place in self.matches()]
        distinct: dict[int, Place] = {}
        for place in places:
            if place.index < len(self.tokens):
                distinct.setdefault(place.index, place)
        return list(distinct.values())

    def continuation(self, place: Place, depth: int, chances: PlaceChances) -> list[tuple[int, float]]:
        """Up to `depth` tokens from a place on, each with its chance once the one before it was right."""
        tokens = self.tokens[place.index : place.index + depth]
        kinds = [place.evidence] + [followed(0, place.run + ahead).evidence for ahead in range(1, len(tokens))]
        return [(token, chances.of(kind)) for token, kind in zip(tokens, kinds, strict=True)]
