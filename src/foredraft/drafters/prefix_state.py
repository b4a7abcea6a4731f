"""What a drafter knows of a stretch of positions, kept after the request that it served.

A request that begins with the same text goes on from there. `joined` puts stretches that follow one another together.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

Columns = tuple[Tensor, ...]  # the features a drafter wants of the same rows, [rows, hidden] each


@dataclass(frozen=True, slots=True)
class PrefixState:
    """A drafter's knowledge of some positions that follow one another.

    Attributes:
        filled: So many of them, from the first on, have rows in the drafter's own layers.
        known: So many, from the first on, are filled or have features that wait.
        features: What waits, of positions `filled` to `known`, in their order; empty where the drafter needs none.
    """

    filled: int = 0
    known: int = 0
    features: tuple[Columns, ...] = ()

    @property
    def rank(self) -> tuple[int, int]:
        """Orders what is known of the same positions: more of them, then more of them filled."""
        return self.known, self.filled

    def part(self, start: int, stop: int) -> "PrefixState":
        """What is known of positions `start` to `stop`, counted from the first."""
        filled = min(max(self.filled, start), stop)
        known = min(max(self.known, start), stop)
        features = rows_of(self.features, filled - self.filled, known - self.filled) if known > filled else ()
        return PrefixState(filled - start, known - start, features)

    def owned(self) -> "PrefixState":
        """The same, in memory that nothing but it keeps alive."""
        return PrefixState(self.filled, self.known, tuple(tuple(map(compacted, columns)) for columns in self.features))


NOTHING = PrefixState()


def rows_of(stretches: Iterable[Columns], start: int, stop: int) -> tuple[Columns, ...]:
    """Rows `start` to `stop` of stretches that follow one another."""
    kept = []
    for columns in stretches:
        count = len(columns[0])
        if start < count and stop > 0:
            kept.append(tuple(column[max(start, 0) : stop] for column in columns))
        start, stop = start - count, stop - count
    return tuple(kept)


def compacted(column: Tensor) -> Tensor:
    """A copy where the memory behind `column` holds more than it."""
    return column.clone() if column.untyped_storage().nbytes() > column.nbytes else column


def joined(parts: Iterable[tuple[PrefixState, int]]) -> PrefixState:
    """What is known of stretches one after another; each is given with its number of positions.

    It ends at the first position nothing is known of, and before a filled one that comes after one that waits: rows are
    filled in order.
    """
    filled = known = 0
    features: list[Columns] = []
    for state, count in parts:
        if state.filled and filled < known:
            break
        filled, known = filled + state.filled, known + state.known
        features += state.features
        if state.known < count:
            break
    return PrefixState(filled, known, tuple(features))
