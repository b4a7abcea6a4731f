"""Measured costs, corrected while the engine runs: the machine may be busier now than when they were measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import log2
from typing import Any, NamedTuple

from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.recent import Recent
from foredraft.engine.step_costs import ForwardCost, StepCosts
from foredraft.engine.way import Way

FOLLOW = 0.1  # weight of a new observation
OWN_FOLLOW = 0.03  # and for what is special to one size: most of what changes is how busy the machine is
NEW = 3  # observations before which a size says nothing of the machine
SETTLED = 1.0  # observations after which a cell speaks for itself
KNOWN = 2.0  # and after which its price is sure
WIDTH = 0.25  # doublings of a cell's rows within which it speaks for others, too
FAR, FAR_FEW = 2, 4  # power by which it says less the further off, and for a few requests: their rows come in blocks
MANY = 8  # requests
FORGET = 0.998  # what a cell's observations are worth after each step without another: the machine was busy then
KEPT_DRIFTS = 1024  # labels and sizes of drafter calls; requests may ask for more than memory can hold
SORTS = PLAIN, DRAFTED, CALLED = 0, 1, 2  # no drafts; some, which no network made; after a network's call
AFTER_CALL = 4  # rows a request that steps after a network's call are compared at
LEAST_SHARE = 0.1  # of a whole draft's time that the shortest is taken to need
WILDEST = 3.0  # an observation further off than this factor is cut to it
RENEW = 8  # steps after which factors are computed again: they move slowly, and are asked for many times a step
LEAST_LEVELS = 128  # rows that factors are computed of at once
SETTLING = 32  # first steps, after each of which they are


@dataclass(slots=True)
class Drift:
    """How observed times compare to those expected."""

    factor: float = 1.0
    seen: float = 0.0

    def follow(self, ratio: float, least: float = FOLLOW, prior: float = 1.0) -> None:
        """Take in an observation, with a weight of `least` at least; what was believed before any was worth `prior`."""
        ratio = min(max(ratio, self.factor / WILDEST), self.factor * WILDEST)
        self.seen += 1.0
        self.factor += (ratio - self.factor) * max(least, 1.0 / (self.seen + prior))


@dataclass(slots=True)
class Cell(Drift):
    """Steps of about the same size, compared to what all steps of their kind take.

    Attributes:
        rows: What they have on average.
        last: The step that was seen last.
    """

    rows: float = 0.0
    last: int = 0


@dataclass(slots=True)
class Calls(Drift):
    """Calls of a drafter for about as many requests, compared to what calls for whole drafts were measured to take.

    Attributes:
        share: How much of a whole draft's time they usually take: drafts end early where more is not worth it.
    """

    share: float = 1.0

    def saw(self, ratio: float, share: float) -> None:
        """Take in a call that took `ratio` of a whole one's time and had but a `share` of it to do."""
        self.follow(ratio / share)
        self.share += (share - self.share) * max(FOLLOW, 1.0 / self.seen)

    @property
    def whole(self) -> float:
        """The usual ratio."""
        return self.factor * self.share


class Seen(NamedTuple):
    """What a cell says: its rows, how often these double from 1 on, its factor, and what that is worth."""

    rows: float
    place: float
    factor: float
    worth: float


def smoothed(cells: Sequence[Seen], place: float, usual: float, power: int) -> float:
    """The mean factor of cells at a place so many doublings of rows from 1, by their worth and how near they are, what
    is `usual` among them; how near is told by the `power` of their distance."""
    total, worth = usual * SETTLED, SETTLED
    for _, its, factor, sure in cells:
        far = (its - place) / WIDTH
        near = sure / (1.0 + far**power)
        total += factor * near
        worth += near
    return total / worth


def along(points: list[tuple[float, float]], count: int) -> list[float]:
    """Values at 0 to `count` - 1, or further, on the line through points of rising places, level beyond its ends."""
    place, value = points[0]
    values = [value] * (int(place) + 1)
    for (left, low), (right, high) in pairwise(points):
        places = range(int(left) + 1, int(right) + 1)
        values += [low + (high - low) * (x - left) / (right - left) for x in places]
    return values + [points[-1][1]] * (count - len(values))


def follow(usual: dict[Any, float], key: Any, seconds: float) -> None:
    """Take in an observation of what `key` takes, a disturbance as far as it may reasonably be off."""
    before = usual.get(key, seconds)
    seen = min(seconds, WILDEST * before) if before else seconds
    usual[key] = before + FOLLOW * (seen - before)


@dataclass
class OwnTime:
    """Seconds that choosing, cutting and placing drafts take in a step, without the calls that make them and without
    decisions, which come once in several steps; by number of requests and sort of step.

    Beside many requests that comes to a row each, and drafts that just pay for their rows do not pay for it.
    """

    seconds: dict[tuple[int, int], float] = field(default_factory=dict)

    def of(self, requests: int, sort: int) -> float:
        return self.seconds.get((size_class(requests), sort), 0.0)

    def saw(self, requests: int, sort: int, seconds: float) -> None:
        follow(self.seconds, (size_class(requests), sort), seconds)

    def after(self, requests: int, sort: int, seconds: float | None) -> float:
        """What it takes in such a step, once it was seen to take so many `seconds`, if it was seen."""
        if seconds is not None:
            self.saw(requests, sort, seconds)
        return self.of(requests, sort)


@dataclass
class LiveCosts:
    """Seconds of steps and drafts as expected now.

    A step is everything but the drafters' calls and decisions: the target's forward, verification and bookkeeping.
    What it takes beyond the measured forward is learned by kind of request (sampling costs more than argmax), and
    beside that for each sort of step by number of rows: when the machine is busy for a while, all sizes are, also those
    that nobody sees then. A step after a network's call takes longer than another of its size, since the call has read
    what the caches held: that is a cost of the call.

    Attributes:
        table: What was measured.
        steps: Steps seen.
        whole, cells: How steps compare to it, all of a kind; how those of one size compare to that.
        drafts, latest: Drafter calls, by label and size; those of any size that were seen last, by label.
        light: Calls that read no network, by label.
        readings: Seconds a position that a drafter takes to read a text for its first draft, by drafter.
        own: What the policy itself takes.
        known_drafts, known_tokens, known_sums, known_levels: As last computed; the last ones are factors by rows, for
            each kind of step.
    """

    table: StepCosts
    steps: int = 0
    whole: dict[bool, Drift] = field(default_factory=lambda: {False: Drift(), True: Drift()})
    cells: dict[tuple[int, bool, int], dict[int, Cell]] = field(default_factory=dict)
    known_levels: dict[tuple[int, bool, int], list[float]] = field(default_factory=dict)
    known_sums: dict[bool, list[tuple[int, int, float, float]]] = field(default_factory=dict)
    known_tokens: dict[tuple[str, str, str, int], float] = field(default_factory=dict)
    light: Recent[str, bool] = field(default_factory=lambda: Recent(KEPT_DRIFTS))
    readings: dict[str, float] = field(default_factory=dict)
    drafts: Recent[tuple[str, int], Calls] = field(default_factory=lambda: Recent(KEPT_DRIFTS))
    latest: Recent[str, Calls] = field(default_factory=lambda: Recent(KEPT_DRIFTS))
    known_drafts: dict[tuple[str, int], float] = field(default_factory=dict)
    own: OwnTime = field(default_factory=OwnTime)

    def step_seconds(self, rows: int, requests: int, context: float, sampled: bool, *, called: bool = False) -> float:
        """A step of `rows` packed rows, of `requests` with so many committed positions each on average; `called` where
        it comes after a network's call."""
        sort = sort_of(rows, requests, called)
        return self.table.forward_seconds(rows, requests, context) * self.factor(rows, requests, sampled, sort)

    def step_line(
        self, first: int, last: int, requests: int, context: float, sampled: bool, *, called: bool = False
    ) -> list[float]:
        """`step_seconds` of `first` to `last` rows, [last - first + 1]."""
        levels = self.levels(last, (size_class(requests), sampled, CALLED if called else DRAFTED))
        whole, forwards = self.whole[sampled].factor, self.table.forward_line(first, last, requests, context)
        line = [whole * level * seconds for level, seconds in zip(levels[first : last + 1], forwards, strict=True)]
        if sort_of(first, requests, called) == PLAIN:
            line[0] = self.step_seconds(first, requests, context, sampled)
        return line

    def levels(self, last: int, kind: tuple[int, bool, int]) -> list[float]:
        """Factors of steps of one kind, beside `whole`, of 0 to `last` rows at least."""
        known = self.known_levels.get(kind, ())
        if len(known) <= last:
            known = self.known_levels[kind] = along(self.line_of(kind), max(2 * last, LEAST_LEVELS))
        return known

    def aftermath(self, requests: int, context: float, sampled: bool) -> float:
        """How many seconds longer a step takes after a network's call than another of its size is believed to; less
        than none where these have been seen and the others have not."""
        if (size_class(requests), sampled, CALLED) not in self.cells:
            return 0.0
        rows = AFTER_CALL * requests
        other, called = (self.factor(rows, requests, sampled, sort) for sort in (DRAFTED, CALLED))
        return (called - other) * self.table.forward_seconds(rows, requests, context)

    def factor(self, rows: int, requests: int, sampled: bool, sort: int) -> float:
        """How much longer steps of this size take than their forward was measured to: as those of the nearest sizes
        that have been seen."""
        return self.whole[sampled].factor * self.levels(rows, (size_class(requests), sampled, sort))[rows]

    def knows(self, rows: int, requests: int, sampled: bool) -> bool:
        """Whether steps of this size with drafts have been seen, and not too long ago."""
        alike = (self.cells.get((size_class(requests), sampled, sort), {}) for sort in (DRAFTED, CALLED))
        found = (cells.get(size_class(rows)) for cells in alike)
        return any(cell is not None and self.worth(cell) >= KNOWN for cell in found)

    def line_of(self, kind: tuple[int, bool, int]) -> list[tuple[float, float]]:
        """Factors by rows of one kind of step, beside `whole`, at least one; in doubt those of other sorts, and then of
        the nearest number of requests.

        That a step's time leaps between two sizes was seen when forwards were measured, if it does. What has been seen
        since is smooth over the rows: a size met while the machine was busy must not look like a leap to it.
        """
        size, sampled, sort = kind
        own, power = self.seen_cells(kind), FAR_FEW if 1 < size < size_class(MANY) else FAR
        others = [self.seen_cells((size, sampled, other)) for other in SORTS if other != sort]
        points = {}
        for cells in (*others, own):
            points |= cells
        mine, beside = list(own.values()), [cell for cells in others for cell in cells.values()]
        usual = self.usual(size, sampled, sort)
        line = []
        for rows, place, _, _ in sorted(points.values()):
            line.append((rows, smoothed(mine, place, smoothed(beside, place, usual, power), power)))
        return line or [(0.0, usual)]

    def seen_cells(self, kind: tuple[int, bool, int]) -> dict[int, Seen]:
        """What the cells of one kind say, by size."""
        cells = self.cells.get(kind, {}).items()
        return {size: Seen(cell.rows, log2(cell.rows), cell.factor, self.worth(cell)) for size, cell in cells}

    def usual(self, size: int, sampled: bool, sort: int) -> float:
        """The mean factor of all cells of one sort, the nearer in number of requests the more it counts; in doubt that
        of all sorts."""
        total, worth, total_others, worth_others = 0.0, 0.0, SETTLED, SETTLED
        for its, other, factors, sure in self.sums(sampled):
            alike = 1.0 / (1 + abs(its - size)) ** 2
            if other == sort:
                total += alike * factors
                worth += alike * sure
            else:
                total_others += alike * factors
                worth_others += alike * sure
        return (total + SETTLED * total_others / worth_others) / (worth + SETTLED)

    def sums(self, sampled: bool) -> list[tuple[int, int, float, float]]:
        """Size, sort, and factors by their worth in all, and that worth, of each kind of step that samples or not."""
        sums = self.known_sums.get(sampled)
        if sums is None:
            sums = self.known_sums[sampled] = []
            for (size, sampling, sort), cells in self.cells.items():
                if sampling == sampled:
                    sure = [(cell.factor, self.worth(cell)) for cell in cells.values()]
                    sums.append((size, sort, sum([its * worth for its, worth in sure]), sum([w for _, w in sure])))
        return sums

    def worth(self, cell: "Cell") -> float:
        return min(cell.seen, 1.0 / FOLLOW) * FORGET ** (self.steps - cell.last)

    def saw_step(
        self, rows: int, requests: int, context: float, sampled: bool, seconds: float, *, called: bool = False
    ) -> None:
        """Learn what such a step took; `called` where it came after a network's call."""
        ratio = seconds / self.table.forward_seconds(rows, requests, context)
        whole = self.whole[sampled]
        cells = self.cells.setdefault((size_class(requests), sampled, sort_of(rows, requests, called)), {})
        cell = cells.setdefault(size_class(rows), Cell(rows=rows))
        # What is special to a size is no news of the machine: else plain steps, unseen for a while, would be believed
        # to have become dearer only because all steps are of a dearer size now.
        if cell.seen >= NEW or whole.seen < NEW:
            whole.follow(ratio / cell.factor, prior=0.0)
        cell.follow(ratio / whole.factor, OWN_FOLLOW, prior=0.0)
        cell.rows += FOLLOW * (rows - cell.rows)
        self.steps += 1
        cell.last = self.steps
        if self.steps % RENEW == 0 or self.steps < SETTLING:
            for known in (self.known_sums, self.known_levels, self.known_drafts, self.known_tokens):
                known.clear()

    def draft_seconds(self, label: str, requests: int) -> float:
        """A call for drafts of so many requests; an option nobody measured is taken to cost a plain step."""
        seconds = self.known_drafts.get((label, requests))
        if seconds is None:
            seconds = self.expected_draft(label, requests) * self.calls(label, requests).whole
            self.known_drafts[label, requests] = seconds
        return seconds

    def has_seen(self, label: str, requests: int) -> bool:
        """Whether a call for about so many requests has been seen since the engine began."""
        return (label, size_class(requests)) in self.drafts

    def calls(self, label: str, requests: int) -> Calls:
        """How such calls compare to whole ones as measured. Of those that nobody has made yet for so many requests
        those for others say something, since chains that stop by themselves take less wherever they are asked for; else
        it is only known that the machine was slow then, where steps take less than they did: or they would never be
        made."""
        seen = self.drafts.get((label, size_class(requests)))
        if seen:
            return seen
        latest = self.latest.get(label) or Calls()
        return Calls(min([latest.factor, *(whole.factor for whole in self.whole.values())]), share=latest.share)

    def reading_seconds(self, owner: str, positions: int) -> float:
        """What a drafter's first draft for a text of so many positions takes beyond a later one; nothing as long as
        nobody has seen one."""
        return self.readings.get(owner, 0.0) * positions

    def saw_reading(self, owner: str, positions: int, seconds: float) -> None:
        follow(self.readings, owner, seconds / positions)

    def without_stalls(self, label: str, requests: int, seconds: float) -> float:
        """What a call has taken, as far as that says something of the drafter: the machine may have been elsewhere."""
        return min(seconds, WILDEST * self.draft_seconds(label, requests))

    def another_token(self, way: Way, shorter: Way, longer: Way, requests: int) -> float:
        """Seconds of another token of so many drafts that are made together by `way`, one of drafts of two lengths."""
        key = (way.label, shorter.label, longer.label, requests)
        seconds = self.known_tokens.get(key)
        if seconds is None:
            seconds = self.calls(way.label, requests).factor * self.measured_token(shorter, longer, requests)
            self.known_tokens[key] = seconds
        return seconds

    def measured_token(self, shorter: Way, longer: Way, requests: int) -> float:
        """What it was measured to take, as drafts of two lengths differ; its part of a call where there is but one."""
        seconds = self.expected_draft(longer.label, requests)
        if shorter.depth == longer.depth:
            return seconds / (1 + longer.depth)
        return max(0.0, seconds - self.expected_draft(shorter.label, requests)) / (longer.depth - shorter.depth)

    def share(self, way: Way, shorter: Way, longer: Way, requests: int, depth: int) -> float:
        """How much of a whole draft's time one that ends at `depth` has to take; as `another_token`."""
        if not way.stepwise:
            return 1.0
        whole = self.expected_draft(way.label, requests)
        less = (way.depth - max(depth, 1)) * self.measured_token(shorter, longer, requests)
        return max(LEAST_SHARE, 1.0 - less / whole) if whole else 1.0

    def expected_draft(self, label: str, requests: int) -> float:
        """What was measured when the engine was idle."""
        measured = self.table.draft_seconds(label, requests)
        return self.table.forward_seconds(requests, requests, 0) if measured is None else measured

    def saw_draft(self, label: str, requests: int, seconds: float, share: float = 1.0) -> None:
        """Learn what a call took that had but a `share` of a whole draft to make."""
        expected = self.expected_draft(label, requests)
        if expected:  # drafting nothing costs nothing
            calls = self.drafts.recall((label, size_class(requests)), Calls)
            calls.saw(seconds / expected, share)
            self.latest[label] = calls
            self.known_drafts.pop((label, requests), None)
            self.known_tokens.clear()


def rough_costs(statistics: SpeculationStatistics) -> StepCosts:
    """A step's mean time so far as the cost of any step, where nothing could be measured; what is seen corrects it."""
    seconds = statistics.verify_seconds / max(statistics.rounds, 1) or 1e-3
    return StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=seconds),), drafts={})


def sort_of(rows: int, requests: int, called: bool = False) -> int:
    """The sort of a step, `called` where it came after a network's call."""
    return CALLED if called else DRAFTED if rows > requests else PLAIN


def size_class(count: int) -> int:
    """Sizes told apart: each up to 4, then four to an octave."""
    if count <= 4:
        return count
    octave = count.bit_length()
    return octave * 4 + (count >> (octave - 3)) % 4 + 100
