"""Curves through noisy measurements: what a forward costs at sizes nobody measured.

For given rows, time is linear in the context, which every row's attention reads whole. It grows piecewise linearly with
the rows: flat while weights are read, steeper where arithmetic decides.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Curve:
    """A rising line through knots: level before the first, and past the last as steep as over the last half."""

    xs: Sequence[float]
    ys: Sequence[float]

    @classmethod
    def through(cls, points: Mapping[float, float]) -> "Curve":
        """The non-decreasing curve closest to `points` at their places, in least squares."""
        xs = sorted(points)
        return cls(xs, rising([points[x] for x in xs]))

    def at(self, x: float) -> float:
        above = bisect_right(self.xs, x)
        if above == 0:
            return self.ys[0]
        if above == len(self.xs):
            return self.ys[-1] + (x - self.xs[-1]) * self.last_slope()
        left, right = self.xs[above - 1], self.xs[above]
        share = (x - left) / (right - left)
        return self.ys[above - 1] + share * (self.ys[above] - self.ys[above - 1])

    def last_slope(self) -> float:
        """Rise over the upper half of the range: the last two knots alone would carry their noise far."""
        if len(self.xs) == 1:
            return 0.0
        half = max(self.xs[0], min(self.xs[-1] / 2, self.xs[-2]))
        return (self.ys[-1] - self.at(half)) / (self.xs[-1] - half)


def rising(values: Iterable[float]) -> list[float]:
    """The non-decreasing sequence closest to `values` in least squares, by pooling adjacent violators."""
    blocks: list[tuple[float, int]] = []  # mean and length
    for value in values:
        mean, count = value, 1
        while blocks and blocks[-1][0] >= mean:
            before, length = blocks.pop()
            mean, count = (before * length + mean * count) / (length + count), length + count
        blocks.append((mean, count))
    return [mean for mean, count in blocks for _ in range(count)]


def below(values: Sequence[float]) -> list[float]:
    """The largest convex line below `values` at equal distances, at their places."""
    if len(values) < 2:
        return list(values)
    corners: list[tuple[int, float]] = []
    for place, value in enumerate(values):
        while len(corners) > 1:
            (first, start), (middle, between) = corners[-2:]
            if (between - start) * (place - first) < (value - start) * (middle - first):
                break
            corners.pop()  # lies on or above the line
        corners.append((place, value))
    line = [corners[0][1]]
    for (first, start), (last, end) in pairwise(corners):
        step = (end - start) / (last - first)
        line += [*[start + step * further for further in range(1, last - first)], end]
    return line


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardCurve:
    """Seconds of forwards of one number of requests.

    Attributes:
        start: Shortest context measured.
        base: Seconds at that context, by rows.
        slope: Seconds more for each further position of context, by rows; none where only one context was measured.
    """

    start: float
    base: Curve
    slope: Curve | None

    @classmethod
    def through(cls, points: Mapping[float, Mapping[float, float]]) -> "ForwardCurve":
        """From seconds by context and rows."""
        start = min(points)
        base = Curve.through(points[start])
        rows = {row for context in points if context > start for row in points[context]}
        slopes = {row: slope_at(row, points, start, base.at(row)) for row in rows}
        return cls(start=start, base=base, slope=Curve.through(slopes) if slopes else None)


def slope_at(row: float, points: Mapping[float, Mapping[float, float]], start: float, base: float) -> float:
    """Seconds a position of context: the line from `base` at `start` that is closest to what was measured."""
    further = [(context - start, of_rows[row] - base) for context, of_rows in points.items() if row in of_rows]
    return max(0.0, sum(x * y for x, y in further) / sum(x * x for x, _ in further))


Part = tuple[float, float]  # seconds a position of context, and the context from which on they are paid


class ForwardLine(NamedTuple):
    """Seconds of forwards of one number of requests.

    Attributes:
        base: At the shortest context, by rows from 0 on.
        parts: What more context adds: seconds a position, likewise, and the context from which on they are paid.
    """

    base: list[float]
    parts: list[tuple[list[float], float]]


class ForwardCurves:
    """Seconds of forwards of any size.

    Between the measured numbers of requests they are interpolated. Past the last one each further request costs what it
    did between the last two, and attention to the context in proportion.
    """

    def __init__(self, points: Mapping[int, Mapping[float, Mapping[float, float]]]):
        """From seconds by requests, context and rows."""
        self.counts = sorted(points)
        self.curves = {count: ForwardCurve.through(points[count]) for count in self.counts}

    def cell(self, rows: float, requests: int) -> tuple[float, tuple[Part, ...]]:
        """Seconds of `rows` rows of `requests` requests at the shortest context, and what more context adds."""
        shares = self.shares(requests)
        base = sum(share * self.curves[count].base.at(rows) for count, share in shares)
        parts = [(share * self.slope(count, rows), self.curves[count].start) for count, share in shares]
        last = self.counts[-1]
        if requests > last:
            base += (requests - last) * self.request_seconds()
            parts = [(slope * requests / last, start) for slope, start in parts]
        return base, tuple(parts)

    def line(self, last: int, requests: int) -> ForwardLine:
        """The cells of 0 to `last` rows: in lists of plain numbers they are read fastest."""
        base, parts = zip(*[self.cell(rows, requests) for rows in range(last + 1)], strict=True)
        slopes = [[slope for slope, _ in part] for part in zip(*parts, strict=True)]
        return ForwardLine(list(base), list(zip(slopes, [start for _, start in parts[0]], strict=True)))

    def shares(self, requests: int) -> list[tuple[int, float]]:
        """The measured numbers of requests on both sides of `requests`, with their weights."""
        above = bisect_right(self.counts, requests)
        if above in (0, len(self.counts)):
            return [(self.counts[max(above - 1, 0)], 1.0)]
        left, right = self.counts[above - 1], self.counts[above]
        share = (requests - left) / (right - left)
        return [(left, 1 - share), (right, share)] if share else [(left, 1.0)]

    def slope(self, count: int, rows: float) -> float:
        """Seconds a position of context; borrowed in proportion where `count` requests saw one context only."""
        known = [other for other in self.counts if self.curves[other].slope is not None]
        if not known:
            return 0.0
        donor = min(known, key=lambda other: abs(other - count))
        return self.curves[donor].slope.at(rows) * count / donor

    def request_seconds(self) -> float:
        """What one more request costs at equal rows, over the last two measured numbers of requests."""
        if len(self.counts) == 1:
            return 0.0
        before, last = self.counts[-2:]
        base = self.curves[last].base
        more = [base.at(row) - self.curves[before].base.at(row) for row in base.xs]
        return max(0.0, sum(more) / len(more) / (last - before))
