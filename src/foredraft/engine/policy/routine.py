"""Steps between two decisions in which there is nothing to weigh: who drafts and how is known, no instant way is asked
and no draft is cut. Between two forwards every line of Python costs memory reads, so such a step runs very few."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mode
from typing import NamedTuple

from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.policy.allocation import PLAIN
from foredraft.engine.policy.live_costs import size_class
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.seat import Seat, depth_of
from foredraft.engine.running import Option, Work

WORTH_JOINING = 16  # tokens that a request must have left to write for it to be read by a drafter
Pair = tuple[Work, RequestPolicy]
Order = tuple[Work, Option]


class Account(NamedTuple):
    """Steps and tokens of a request."""

    known: RequestPolicy
    statistics: SpeculationStatistics
    place: int
    steps: int
    tokens: int

    def since(self) -> "Account":
        """Those that have come since."""
        steps, tokens = self.statistics.rounds - self.steps, self.statistics.committed - self.tokens
        return self._replace(steps=steps, tokens=tokens)


@dataclass(eq=False)
class Routine:
    """What a decision has come to for each request.

    Attributes:
        places: The way of each request, by what is known of it; `PLAIN` for none.
        least: Fewest of them that it is good for.
        crowd: Class of how many requests there are.
        anybody: Whether it is good for others, too: nobody is drafted for.
        prices: Tokens that asking an instant way costs, by label.
        spare: Draft nodes that a step may hold beyond theirs.
        drafts: Whether anybody is drafted for: by ways that stop by themselves.
        accounts: What all had written when it was last counted; none while it is not.
        seconds: Of steps of which nothing else was noted.
    """

    places: dict[RequestPolicy, int]
    least: int
    crowd: int
    prices: Mapping[str, float]
    spare: int
    drafts: bool
    anybody: bool = False
    accounts: list[Account] | None = None
    seconds: float = 0.0

    def suits(self, deciding: Sequence[Pair], crowd: int) -> bool:
        """Whether it is good for so many requests, if its strangers may join."""
        if self.anybody:
            return crowd == self.crowd and not any([its.fixed for _, its in deciding])
        return len(deciding) >= self.least

    def strangers(self, deciding: Sequence[Pair]) -> list[Pair]:
        """Who takes no part yet."""
        return [] if self.anybody else [pair for pair in deciding if pair[1] not in self.places]

    def takes(self, work: Work, its: RequestPolicy) -> bool:
        """Whether a step with this stranger takes no thought: it joins, or is at the end of its prompt and waits."""
        return self.welcomes(work, its) or (work.chunk > 1 and not its.fixed)

    def welcomes(self, work: Work, its: RequestPolicy) -> bool:
        """Let who has come since go on like most others of its temperature, if there are any, that may serve, and no
        instant way is likely to be worth asking: to decide about it takes longer than it may gain."""
        alike = [other for other in self.places if other.temperature_class == its.temperature_class]
        if not alike or its.fixed or its.crowd != self.crowd:
            return False
        usual = mode([self.places[other] for other in alike])
        leader = next(other for other in alike if self.places[other] == usual)
        if not may_join(leader, work, its):
            return False
        its.settle(self.prices)
        nodes = leader.ways[usual].nodes
        if its.standing or nodes > self.spare or not its.joins(leader):
            return False
        self.places[its], self.spare = its.base.place, self.spare - nodes
        return True

    def seats(self, deciding: Sequence[Pair]) -> list[Seat]:
        """Those who are drafted for, at their places."""
        if not self.drafts:
            return []
        seats, places = [], self.places
        for work, its in deciding:
            place = places.get(its, PLAIN)
            if place != PLAIN:
                seats.append(Seat(work, its, depth_of(work), place, its.steps))
        return seats

    def orders(self, deciding: Sequence[Pair]) -> list[Order] | None:
        """What those who are drafted for are to have; none where something has to be worked out before: so many have
        not been drafted for since the decision."""
        orders, places, size = [], self.places, size_class(len(deciding))
        for work, its in deciding if self.drafts else ():
            place = places.get(its, PLAIN)
            if place == PLAIN:
                continue
            growth = its.growth.get((place, size))
            if growth is None:
                return None
            work.growth = growth
            orders.append((work, work.running.options[place]))
        return orders

    def counts(self, deciding: Sequence[Pair]) -> bool:
        """Whether these are counted, and nobody else: who comes with its whole text in the cache reads no prompt."""
        return self.accounts is not None and [its.known for its in self.accounts] == [its for _, its in deciding]

    def open(self, deciding: Sequence[Pair]) -> None:
        """Count from here on."""
        if self.accounts is None:
            seen = [(its, work.running.request.statistics) for work, its in deciding]
            places = self.places
            self.accounts = [Account(its, own, places.get(its, PLAIN), own.rounds, own.committed) for its, own in seen]

    def closed(self) -> list[Account]:
        """What has been written since it was counted last."""
        accounts, self.accounts = self.accounts or [], None
        return [account.since() for account in accounts]


def may_join(leader: RequestPolicy, work: Work, its: RequestPolicy) -> bool:
    """Whether a request may draft like `leader`: from its prompt's end on by what needs nothing of the target, near the
    end of its text by a drafter that knows it. That nobody was worth drafting for says little of another text."""
    place = leader.base.place
    if place == PLAIN:
        return False
    ready = work.chunk == 1 or leader.ways[place].independent
    return ready and (leader.owner(place) in its.called or work.running.request.remaining >= WORTH_JOINING)


def routine_of(
    seats: Sequence[Seat],
    crowd: int,
    prices: Mapping[str, float],
    *,
    least: int,
    room: int,
    anybody: bool = False,
) -> Routine | None:
    """How to go on as in the last decision, for `least` requests or more, or for `anybody`, where that takes no thought
    and no more than `room` draft nodes; else none."""
    drafted = [seat for seat in seats if seat.known.base.place != PLAIN]
    if any([seat.known.fixed or seat.known.standing for seat in seats]):
        return None
    ways = [seat.known.ways[seat.known.base.place] for seat in drafted]
    spare = room - sum([way.nodes for way in ways])
    if spare < 0 or not all([way.stops for way in ways]):
        return None
    places = {seat.known: seat.known.base.place for seat in seats}
    return Routine(places, least, crowd, prices, spare, bool(ways), anybody)
