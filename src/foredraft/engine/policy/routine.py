"""Steps between two decisions in which there is little to weigh: who drafts and how is known.

Where an instant way is asked first, its draft or the one decided is taken, whichever is worth more. Several of them are
asked, and drafts cut, only where a request is alone: then its rows are nobody else's, and weighing them takes little.
Between two forwards every line of Python costs memory reads, so such a step runs very few.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import mode
from typing import NamedTuple

from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.policy.allocation import PLAIN, Values
from foredraft.engine.policy.decision import StepPrices
from foredraft.engine.policy.live_costs import size_class
from foredraft.engine.policy.request_policy import UNASKED, RequestPolicy
from foredraft.engine.policy.seat import Seat, depth_of
from foredraft.engine.running import Option, Work

LEAST_FOUND = 0.1  # draft nodes a request and step without which asking for all is given up at once
WORTH_JOINING = 16  # tokens that a request must have left to write for it to be read by a drafter
Pair = tuple[Work, RequestPolicy]
Order = tuple[Work, Option]


class Account(NamedTuple):
    """Steps, tokens and draft nodes of a request."""

    known: RequestPolicy
    statistics: SpeculationStatistics
    place: int
    steps: int
    tokens: int
    nodes: int

    def since(self) -> "Account":
        """Those that have come since."""
        own = self.statistics
        steps, tokens, nodes = own.rounds - self.steps, own.committed - self.tokens, own.drafted - self.nodes
        return self._replace(steps=steps, tokens=tokens, nodes=nodes)

    def split(self, taken: Mapping[tuple[RequestPolicy, int], int]) -> "list[Account]":
        """Its parts: by ways other than the one decided, the steps that were `taken` by them, and the rest. A step that
        failed wrote nothing, and was none of them."""
        parts, rest = [], self
        for (known, place), steps in taken.items():
            steps = min(steps, rest.steps) if known is self.known else 0
            if steps:
                tokens, nodes = rest.tokens * steps // rest.steps, rest.nodes * steps // rest.steps
                parts.append(rest._replace(place=place, steps=steps, tokens=tokens, nodes=nodes))
                rest = rest._replace(steps=rest.steps - steps, tokens=rest.tokens - tokens, nodes=rest.nodes - nodes)
        return [*parts, rest]


@dataclass(eq=False)
class Routine:
    """What a decision has come to for each request.

    Attributes:
        places: The way decided for each request, by what is known of it; `PLAIN` for none.
        least: Fewest of them that it is good for.
        crowd: Class of how many requests there are.
        prices: Tokens that asking an instant way costs, by label.
        spare: Draft nodes that a step may hold beyond theirs.
        calls: Whether any way was decided: all of them stop by themselves, but where it weighs.
        others: Temperatures, by class, of which it is good for whoever comes, too: nobody is drafted for.
        firsts: The instant way that is asked before the way decided, of those who have one.
        weighs: Whether the only request asks any number of instant ways, and its drafts are cut.
        taken: Steps in which an instant draft was verified, by request and way, since all were counted last.
        tried: Those for whom it is tried whether asking a way for all pays, and the way; empty most of the time.
        sizes: Steps since all were counted last by their draft nodes, where a way is asked for all.
        accounts: What all had written when it was last counted; none while it is not.
        quiet, seconds: Steps since all were counted last of which nothing else was noted, and what they took.
    """

    places: dict[RequestPolicy, int]
    least: int
    crowd: int
    prices: Mapping[str, float]
    spare: int
    calls: bool
    others: frozenset[int] = frozenset()
    firsts: dict[RequestPolicy, int] = field(default_factory=dict)
    weighs: bool = False
    taken: Counter[tuple[RequestPolicy, int]] = field(default_factory=Counter)
    tried: dict[RequestPolicy, int] = field(default_factory=dict)
    sizes: Counter[int] = field(default_factory=Counter)
    accounts: list[Account] | None = None
    quiet: int = 0
    seconds: float = 0.0

    def suits(self, deciding: Sequence[Pair], crowd: int) -> bool:
        """Whether it is good for so many requests, if its strangers may join."""
        if self.others:
            expected = all([its.temperature_class in self.others and not its.fixed for _, its in deciding])
            return crowd == self.crowd and expected
        return len(deciding) >= self.least

    def strangers(self, deciding: Sequence[Pair]) -> list[Pair]:
        """Who takes no part yet."""
        return [] if self.others else [pair for pair in deciding if pair[1] not in self.places]

    def takes(self, work: Work, its: RequestPolicy) -> bool:
        """Whether a step with this stranger takes no thought: it joins, or is at the end of its prompt and waits."""
        return not self.weighs and (self.welcomes(work, its) or (work.chunk > 1 and not its.fixed))

    def welcomes(self, work: Work, its: RequestPolicy) -> bool:
        """Let who has come since go on like most others of its temperature, if there are any and that may serve: to
        decide about it takes longer than it may gain."""
        alike = [other for other in self.places if other.temperature_class == its.temperature_class]
        if not alike or its.fixed or its.crowd != self.crowd:
            return False
        usual = mode([self.places[other] for other in alike])
        leader = next(other for other in alike if self.places[other] == usual)
        if not may_join(leader, work, its):
            return False
        its.settle(self.prices)
        nodes = max(leader.most_nodes(usual, leader.beside.place), its.most_nodes(*its.standing))
        if nodes > self.spare or not its.joins(leader):
            return False
        self.places[its], self.spare = its.base.place, self.spare - nodes
        if its.standing:
            [self.firsts[its]] = its.standing
        return True

    @property
    def drafts(self) -> bool:
        """Whether anybody is drafted for."""
        return self.calls or self.weighs or bool(self.firsts)

    def try_asking(self, deciding: Sequence[Pair], values: Values) -> None:
        """From now on ask a way for all of those for whom nothing was decided, where that is hoped to pay."""
        if self.firsts or self.weighs:
            return
        for work, its in deciding:
            waits = work.chunk > 1 or its.fixed or self.places.get(its, PLAIN) != PLAIN
            for place in () if waits else its.asked_by_all:
                if its.asked_worth(place, UNASKED) > its.asking_price(place, values):
                    self.tried[its] = place

    def pays(self, values: Values) -> bool:
        """Whether asking a way for all has paid, for any of those who do."""
        asked = [(its, place) for its, place in self.drafted.items() if place in its.asked_by_all]
        return any([its.asked_worth(place) > its.asking_price(place, values) for its, place in asked])

    @property
    def finds_nothing(self) -> bool:
        """Whether hardly anybody has had a draft since it is tried: that says enough."""
        return sum(self.sizes.elements()) < LEAST_FOUND * len(self.tried) * self.sizes.total()

    @property
    def drafted(self) -> dict[RequestPolicy, int]:
        """The way that each is drafted for by now."""
        return self.places | self.tried if self.tried else self.places

    def counts(self, deciding: Sequence[Pair]) -> bool:
        """Whether these are counted, and nobody else: who comes with its whole text in the cache reads no prompt."""
        return self.accounts is not None and [its.known for its in self.accounts] == [its for _, its in deciding]

    def open(self, deciding: Sequence[Pair]) -> None:
        """Count from here on."""
        if self.accounts is None:
            seen = [(its, work.running.request.statistics) for work, its in deciding]
            places = self.drafted
            self.accounts = [
                Account(its, own, places.get(its, PLAIN), own.rounds, own.committed, own.drafted) for its, own in seen
            ]

    def closed(self) -> list[Account]:
        """What has been written since it was counted last, by way."""
        accounts, self.accounts = self.accounts or [], None
        taken, self.taken = self.taken, Counter()
        return [part for its in accounts for part in its.since().split(taken) if part.steps]

    @cached_property
    def asks_all(self) -> bool:
        """Whether it was decided to ask a way for all."""
        return any([place in its.asked_by_all for its, place in self.places.items()])

    def note(self, batch: Sequence[Work]) -> None:
        """A step is over: note its size, where a way is asked for all."""
        if self.tried or self.asks_all:
            self.sizes[sum([len(work.tree.tokens) for work in batch])] += 1

    def passed(self, seconds: float) -> None:
        """A step of which nothing else is noted has taken so long."""
        self.quiet += 1
        self.seconds += seconds

    def node_tokens(self, prices: StepPrices) -> float:
        """Tokens that each draft node has cost since it was counted last: blocks of rows cost what their steps did, so
        steps are told apart."""
        sizes, self.sizes = self.sizes, Counter()
        nodes = sum(sizes.elements())
        cost = sum([steps * (prices.step(size) - prices.step(0)) for size, steps in sizes.items()])
        return cost / (nodes * prices.token) if nodes else 0.0


def seats_at(places: Mapping[RequestPolicy, int], deciding: Sequence[Pair]) -> list[Seat]:
    """Those who are drafted for, at their places."""
    seats = []
    for work, its in deciding:
        place = places.get(its, PLAIN)
        if place != PLAIN:
            seats.append(Seat(work, its, depth_of(work), place, its.steps))
    return seats


def orders_at(places: Mapping[RequestPolicy, int], deciding: Sequence[Pair]) -> list[Order] | None:
    """What those who are drafted for are to have; none where something has to be worked out before: so many have not
    been drafted for since the decision."""
    orders, size = [], size_class(len(deciding))
    for work, its in deciding:
        place = places.get(its, PLAIN)
        if place == PLAIN:
            continue
        growth = its.growth.get((place, size))
        if growth is None:
            return None
        work.growth = growth
        orders.append((work, work.running.options[place]))
    return orders


def may_join(leader: RequestPolicy, work: Work, its: RequestPolicy) -> bool:
    """Whether a request may draft like `leader`: from its prompt's end on by what needs nothing of the target, near the
    end of its text by a drafter that knows it. Where nobody is called for it takes no reading."""
    place = leader.base.place
    if place == PLAIN:
        return True
    ready = work.chunk == 1 or leader.ways[place].independent
    return ready and (leader.owner(place) in its.called or work.running.request.remaining >= WORTH_JOINING)


def routine_of(
    seats: Sequence[Seat],
    crowd: int,
    prices: Mapping[str, float],
    *,
    least: int,
    room: int,
    others: frozenset[int] = frozenset(),
) -> Routine | None:
    """How to go on as in the last decision, for `least` requests or more, or whoever comes of the temperatures
    `others`, where that takes little thought and no more than `room` draft nodes; else none."""
    places = {seat.known: seat.known.base.place for seat in seats}
    firsts = {its: its.first_beside(place) for its, place in places.items()}
    if None in firsts.values():
        return weighing(seats[0].known, prices, room) if crowd == 0 else None
    spare = room - sum([its.most_nodes(places[its], first, its.beside.place) for its, first in firsts.items()])
    firsts = {its: place for its, place in firsts.items() if place != PLAIN}
    decided = [its.beside.place for its in places] if firsts else places.values()
    calls = any([place != PLAIN for place in decided])
    return None if spare < 0 else Routine(places, least, crowd, prices, spare, calls, others, firsts)


def weighing(known: RequestPolicy, prices: Mapping[str, float], room: int) -> Routine | None:
    """How the only request goes on where several drafts are weighed and cut in every step; none where they may be
    larger than `room`, or nothing is to be chosen."""
    place = known.base.place
    spare = room - known.most_nodes(place, *known.standing or ())
    if known.fixed or spare < 0:
        return None
    return Routine({known: place}, 1, 0, prices, spare, calls=place != PLAIN, weighs=True)
