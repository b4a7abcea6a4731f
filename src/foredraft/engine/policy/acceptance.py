"""Acceptance as it is learned: for each request, way to draft and position, on top of what earlier requests taught.

A rate is a Beta posterior. Its prior comes from all requests of the same class (see `RequestPolicy`), worth a few
observations only, since texts differ; a request's own observations fade, so that a change of text shows within a few
dozen steps. What one shape of a drafter's drafts has met says how hard the text is for the others.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log, prod, sqrt
from operator import itemgetter
from typing import NamedTuple

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.recent import Recent

UNSEEN = 0.6  # acceptance of a position nobody has tried
GUESS = 2.0  # observations that a guess is worth where hardly anything was seen
PRIOR_STRENGTH = 6.0  # most observations that everything learned before is worth to a request
PRIOR_WORTH = 5.0  # observations of earlier requests that are worth one of its own
FADE = 0.91  # what a request's earlier observations are worth after each new one
PAST_FADE = 0.998  # the same over all requests
MOST = 0.98  # acceptance nothing is expected to exceed
LEAST_LIKE = 0.3  # how much less than usual one depth may make the next one be expected to be accepted
ALIKE = 4.0  # accepted tokens that a text being like others is worth, for a kind of drafts that others speak for
STALE_FADE = 0.985  # and for each step in which nothing was observed
HOPE_STEPS = 12  # steps without a try after which hope reaches another deviation further
KEPT_TALLIES, KEPT_WORTHS = 16_384, 256  # requests may ask for more shapes of drafts than memory can hold
CHANCE_EDGES = (0.1, 0.25, 0.4, 0.55, 0.7, 0.85, 0.95)
KIN = 5.0  # observations that other kinds of requests are worth to begin with
LATER = (False, True)
STATED, TOLD = 2.0, 8.0  # accepted nodes that believing stated chances is worth, and that a text being like others is
TEXT_FADE = 0.95  # what earlier nodes of a text are worth after each new one, to what is known of its chances
CANDID = 10.0  # what believing a drafter's chances is worth, in squared logs of a chance
LEAST_CANDOUR, LEAST_RATE = 0.25, 0.01
RENEW = 8  # trees after which a drafter's candour is computed again
CHANCE_CENTRES = (0.05, 0.18, 0.33, 0.48, 0.63, 0.78, 0.9, 0.98)


@dataclass(slots=True)
class Tally:
    """Faded counts of a yes-or-no outcome, or of how likely it was."""

    hits: float = 0.0
    tries: float = 0.0

    def add(self, hit: float, fade: float, expected: float = 1.0) -> None:
        """Another outcome; where hits are counted beside those `expected`, how likely it was."""
        self.hits = self.hits * fade + hit
        self.tries = self.tries * fade + expected

    def add_alike(self, hit: float, fade: float, times: int) -> None:
        """So many more outcomes, all alike."""
        fade = fade**times
        self.hits = self.hits * fade + hit * times
        self.tries = self.tries * fade + times

    def begun(self) -> "Tally":
        """A few observations like these."""
        return Tally(KIN * self.hits / self.tries, KIN)

    def fade(self, factor: float) -> None:
        self.hits *= factor
        self.tries *= factor

    def mean(self, guess: float, strength: float) -> float:
        """Posterior mean under a prior of mean `guess` worth `strength` observations."""
        return (self.hits + strength * guess) / (self.tries + strength)


@dataclass(slots=True)
class Rate:
    """A request's acceptance at one place, and what all requests of its kind have seen there."""

    past: Tally
    own: Tally = field(default_factory=Tally)

    def learn(self, hit: float) -> None:
        self.own.add(hit, FADE)
        self.past.add(hit, PAST_FADE)

    def learn_alike(self, hit: float, times: int) -> None:
        """So many outcomes, all alike."""
        self.own.add_alike(hit, FADE, times)
        self.past.add_alike(hit, PAST_FADE, times)

    def estimate(self, guess: float) -> float:
        """The mean, `guess` where nobody has tried."""
        return self.own.mean(self.past.mean(guess, GUESS), strength(self.past))


def strength(past: Tally) -> float:
    """Observations that what all requests have seen is worth to one."""
    return min(2.0 + past.tries / PRIOR_WORTH, PRIOR_STRENGTH)


def deviation(mean: float, tries: float) -> float:
    """How far the `mean` of so many observations may reasonably be off: its standard deviation."""
    return sqrt(mean * (1.0 - mean) / (tries + 1.0))


@dataclass(slots=True)
class Candour:
    """How a kind of drafts is to be taken.

    Attributes:
        levels: Acceptance of the root's children and of others, by class of the chance; none before anybody asks.
        power: That of a stated chance which is the chance of being accepted, as last computed.
        evidence: How much of that is owed to what became of drafts, in squared logs of a chance.
        learned: Trees learned of since.
    """

    levels: list[list[Tally]] | None = None
    power: float | None = None
    evidence: float = 0.0
    learned: int = 0


class Past:
    """What requests have taught, by temperature class and place; of the places that requests asked for last."""

    def __init__(self) -> None:
        self.tallies: Recent[tuple, Tally] = Recent(KEPT_TALLIES)
        self.placed: dict[tuple, list[Tally]] = {}  # some of them by position, as last looked up
        self.worths: Recent[tuple, float] = Recent(KEPT_WORTHS)  # tokens that asking an instant way was worth lately
        self.askings: Recent[tuple, Tally] = Recent(KEPT_WORTHS)  # the same, where all of many ask: tokens and steps
        self.rows: Recent[tuple, float] = Recent(KEPT_WORTHS)  # nodes of a way's drafts that were verified lately
        self.candours: Recent[tuple, Candour] = Recent(KEPT_WORTHS)

    def tally(self, *place) -> Tally:
        return self.tallies.recall(place, Tally)

    @property
    def forgets(self) -> bool:
        """Whether a tally that was looked up earlier may have left meanwhile."""
        return len(self.tallies) >= KEPT_TALLIES

    def tallies_like(self, kind: tuple, depth: int) -> list[Tally]:
        """`tally_like` of `depth` positions or more of a kind of drafts."""
        if self.forgets:
            self.placed.clear()
        placed = self.placed.get(kind, ())
        if len(placed) < depth:
            placed = self.placed[kind] = [self.tally_like(*kind, "depth", place) for place in range(depth)]
        return placed

    def tally_like(self, temperature: int, crowd: int, *place) -> Tally:
        """As `tally`; one that is new starts with a little of what the nearest temperature and crowd have taught."""
        key = (temperature, crowd, *place)
        if key not in self.tallies:
            fewer, more = (temperature, crowd - 1), (temperature, crowd + 1)
            kin = [fewer, (temperature - 1, crowd), (temperature - 2, crowd), more]
            known = (self.tallies.get((*its, *place)) for its in kin)
            self.tallies[key] = next((its.begun() for its in known if its is not None and its.tries >= KIN), Tally())
        return self.tallies[key]


class Outcome(NamedTuple):
    """What became of a draft.

    Attributes:
        reached: Positions that were verified after all before them had been accepted.
        accepted: Tokens accepted.
        step: The request's step.
        further: How likely the next one's acceptance was where it was left out.
    """

    reached: int
    accepted: int
    step: int
    further: float


class DepthAcceptance:
    """How deep a way to draft is accepted, for one request.

    Position j's rate is that of a draft being accepted at depth j once it was at depth j - 1; the expected number of
    accepted tokens of a draft of depth L is the sum over j <= L of the product of the rates up to j.

    Attributes:
        own: The request's own observations, by position, where there are any.
        tried_at: The step it was last tried in.
        faded_at: The step observations have faded to.
        heard: Outcomes not yet taken in: a decision stands for several steps, and taking in all of them at once takes
            hardly longer than one.
        known: What was last estimated; none where something was learned since.
        judged: The evidence for how much this text is like others; none likewise.
        kin: The request's other kinds of drafts by the same drafter: where a text is harder than most for one of them
            it is so for all, and without that one would seem the better for not having been tried there.
    """

    def __init__(self, past: Past, kind: tuple, depth: int) -> None:
        self.past, self.kind, self.depth = past, kind, depth
        self.own: list[Tally] = []
        self.placed: list[Tally] | None = None
        self.tried_at, self.faded_at = 0, 0
        self.heard: list[Outcome] = []
        self.known: tuple[list[float], list[float]] | None = None
        self.judged: tuple[float, float] | None = None
        self.kin: list[DepthAcceptance] = []

    @property
    def usual(self) -> list[Tally]:
        """What all requests of the kind have seen, by position, one for each of its own at least: looked up when
        somebody asks, for a request may have moved by then, or never ask."""
        if self.placed is None:
            self.own = self.own or [Tally() for _ in range(self.depth)]
            self.placed = self.past.tallies_like(self.kind, self.depth)
        return self.placed

    def move(self, kind: tuple) -> None:
        """Start from what requests of another kind have taught; what this one has taught stays."""
        self.take_in()
        self.kind, self.placed = kind, None
        self.forget()

    @property
    def expected(self) -> list[float]:
        """Expected accepted tokens by depth, [depth + 1]."""
        return self.estimated[0]

    def expected_at(self, depth: float) -> float:
        """The same of drafts that are so deep on average."""
        below = int(depth)
        fewer, more = self.expected[below], self.expected[min(below + 1, self.depth)]
        return fewer + (more - fewer) * (depth - below)

    @property
    def estimated(self) -> tuple[list[float], list[float]]:
        """The same, and each depth's mean rate: computed when asked for, seldomer than something is learned."""
        for its in (self, *self.kin):
            its.take_in()
        if self.known is None:
            self.known = self.estimate()
        return self.known

    def estimate(self) -> tuple[list[float], list[float]]:
        expected, means = [0.0], []
        usual, sure, total, likeness = UNSEEN, 1.0, 0.0, self.likeness
        for past, own in zip(self.usual, self.own, strict=False):
            usual = past.mean(usual, GUESS)
            mean = own.mean(min(usual * likeness, MOST), strength(past))
            # Where a text is harder than most at one depth it is so at the next, which is seldom reached.
            likeness = bounded(mean / usual)
            means.append(mean)
            sure *= mean
            total += sure
            expected.append(total)
        return expected, means

    @property
    def likeness(self) -> float:
        """How likely positions are accepted in this text, as a multiple of what is usual, by that one of its kin that
        was tried most of late."""
        hits, expected = max((kin.evidence for kin in self.kin), key=itemgetter(1), default=(0.0, 0.0))
        return bounded(Tally(hits, expected).mean(1.0, ALIKE))

    @property
    def evidence(self) -> tuple[float, float]:
        """Accepted tokens of the request's own drafts, and how many were to be expected."""
        if self.judged is None:
            self.judged = self.judge() if self.own and self.own[0].tries else (0.0, 0.0)
        return self.judged

    def judge(self) -> tuple[float, float]:
        """The evidence, computed again."""
        usual, hits, expected = UNSEEN, 0.0, 0.0
        for past, own in zip(self.usual, self.own, strict=False):
            usual = past.mean(usual, GUESS)
            hits += own.hits
            expected += own.tries * usual
        return hits, expected

    def hoped(self, depth: int, step: int) -> float:
        """Accepted tokens of a draft of `depth` as far up as they may reasonably be in the request's step `step`.

        Hope grows with the time since the last try.
        """
        trust = 1.0 + (step - self.tried_at) / HOPE_STEPS
        sure = total = 1.0
        for mean, past, own in zip(self.estimated[1][:depth], self.usual, self.own, strict=False):
            sure *= min(1.0, mean + trust * deviation(mean, own.tries + strength(past)))
            total += sure
        return total - 1.0

    def urgency(self, step: int) -> float:
        """What is to be tried first: what was not tried for longest."""
        return 1.0 + step - self.tried_at

    def learn(self, depth: int, accepted: int, step: int, further: float = 0.0) -> None:
        """A draft that might go `depth` deep was accepted to depth `accepted`, in the request's step `step`.

        Args:
            further: How likely the next one's acceptance was where it was left out, by what its drafter said of it.
        """
        self.heard.append(Outcome(min(depth, accepted + 1), accepted, step, further))
        self.tried_at = step

    def take_in(self) -> None:
        """Learn of all outcomes heard of."""
        if not self.heard:
            return
        heard = [(self.fade_to(outcome.step) * FADE, *outcome) for outcome in self.heard]
        deepest = max([reached for _, reached, *_ in heard])
        for position, (past, own) in enumerate(zip(self.usual, self.own[:deepest], strict=False)):
            hits, tries = own.hits, own.tries
            for fade, reached, accepted, _, further in heard:
                hits, tries = hits * fade, tries * fade
                if position < reached:
                    hit = 1.0 if position < accepted else further
                    hits, tries = hits + hit, tries + 1.0
                    past.add(hit, PAST_FADE)
            own.hits, own.tries = hits, tries
        faded = prod([fade for fade, *_ in heard])
        for own in self.own[deepest:]:
            own.fade(faded)
        self.heard = []
        self.forget()

    def forget(self) -> None:
        """What was estimated is so no more, here and of its kin."""
        self.known = self.judged = None
        for kin in self.kin:
            kin.known = None

    def let_fade(self, step: int) -> None:
        """Trust the request's own observations less the longer ago they were made."""
        self.take_in()
        factor = self.fade_to(step)
        if factor < 1.0:
            for own in self.own:
                own.fade(factor)
            self.forget()

    def fade_to(self, step: int) -> float:
        """What earlier observations are worth in `step` by the time since alone; they are to be faded by as much."""
        idle, self.faded_at = max(0, step - self.faded_at - 1), step
        return STALE_FADE**idle


def bounded(likeness: float) -> float:
    return min(max(likeness, LEAST_LIKE), 1.0 / LEAST_LIKE)


class ChanceAcceptance:
    """What a drafter's own estimates are worth: a stated chance is corrected by how often such chances came true in all
    requests, those of the root's children and of others, and by how this text compares: one factor each, since what a
    text says of single classes of chances is little, and what it says of all is that they are too high, or too low.

    Attributes:
        going_on: Acceptance of the children of what is accepted, whatever their chances.
        own: Nodes of this text accepted of the root's children and of others, and how many were to be expected.
        known: By what stated chances of a class are to be multiplied, as last estimated; none where something was
            learned since.
        shared: What all requests of the kind share beside what their drafts have taught.
    """

    def __init__(self, past: Past, kind: tuple) -> None:
        self.past, self.kind = past, kind
        self.known: list[list[float | None]] = [[None] * len(CHANCE_CENTRES) for _ in LATER]
        self.own = (Tally(), Tally())
        self.shared = past.candours.recall(kind, Candour)

    @cached_property
    def going_on(self) -> Rate:
        return Rate(self.past.tally(*self.kind, "onward"))

    @property
    def onward(self) -> float:
        """How likely one of the nodes below an accepted one is accepted, too."""
        return self.going_on.estimate(UNSEEN)

    @property
    def levels(self) -> list[list[Tally]]:
        """Accepted nodes of all requests of the kind, of the root's children and of others, by class of the chance, and
        how many the chances stated."""
        shared, places = self.shared, range(len(CHANCE_CENTRES))
        if shared.levels is None or self.past.forgets:
            shared.levels = [[self.past.tally(*self.kind, "stated", its, later) for its in places] for later in LATER]
        return shared.levels

    def path_rates(self, tree: DraftTree) -> list[float]:
        """How likely each node is to be accepted together with all its ancestors, [N]; `tree` states chances."""
        rates, (first, later) = [], self.known
        for chance, parent in zip(tree.chances, tree.parents, strict=True):
            level = bisect_right(CHANCE_EDGES, chance)
            if parent == ROOT:
                known = first[level]
                rates.append(min(chance * (self.factor(level, later=False) if known is None else known), MOST))
            else:
                known = later[level]
                factor = self.factor(level, later=True) if known is None else known
                rates.append(rates[parent] * min(chance * factor, MOST))
        return rates

    def factor(self, level: int, later: bool) -> float:
        """By what a stated chance of a class is to be multiplied."""
        known = self.known[later][level] = self.levels[later][level].mean(1.0, STATED) * self.own[later].mean(1.0, TOLD)
        return known

    @property
    def candour(self) -> float:
        """The power of a stated chance that is the chance of being accepted: below 1 where a drafter is modest, above
        where it boasts."""
        shared = self.shared
        if shared.power is None or shared.learned >= RENEW:
            (shared.power, shared.evidence), shared.learned = self.fit(), 0
        return shared.power

    @property
    def proven(self) -> bool:
        """Whether what became of drafts says more of what stated chances are worth than believing them."""
        return self.candour > 0 and self.shared.evidence > CANDID

    def fit(self) -> tuple[float, float]:
        """The power that fits best, by least squares over logs, from what all requests of the kind have seen, and how
        much that is."""
        fit, worth = CANDID, CANDID
        for tallies in self.levels:
            for centre, past in zip(CHANCE_CENTRES, tallies, strict=True):
                if past.tries:
                    tries, stated = past.tries / centre, log(centre)
                    fit += tries * stated * log(max(centre * past.mean(1.0, centre), LEAST_RATE))
                    worth += tries * stated * stated
        return min(max(fit / worth, LEAST_CANDOUR), 1.0 / LEAST_CANDOUR), worth - CANDID

    def learn(self, tree: DraftTree, path: Sequence[int], *, ended: bool = True) -> None:
        """The nodes of a `path` of the tree were accepted; every node whose parent was has been tried, but for those
        below the last one unless the path `ended` there: what follows it is not known yet."""
        self.shared.learned += 1
        levels, own, reached = self.levels, self.own, {ROOT, *path}
        if path:
            self.going_on.learn_alike(1.0, len(path))
        if not ended:
            reached.remove(path[-1])
        elif (path[-1] if path else ROOT) in tree.parents:
            self.going_on.learn(0.0)
        for node, parent in enumerate(tree.parents):
            if parent in reached:
                chance, hit, later = tree.chances[node], node in path, parent != ROOT
                past = levels[later][bisect_right(CHANCE_EDGES, chance)]
                own[later].add(hit, TEXT_FADE, min(chance * past.mean(1.0, STATED), MOST))
                past.add(hit, PAST_FADE, chance)
        self.known = [[None] * len(CHANCE_CENTRES) for _ in LATER]
