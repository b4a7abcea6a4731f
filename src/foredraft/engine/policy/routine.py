"""Steps between two decisions in which there is nothing to weigh: who drafts and how is known, no instant way is asked
and no draft is cut. Between two forwards every line of Python costs memory reads, so such a step runs very few."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.policy.allocation import PLAIN
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.seat import Seat, depth_of
from foredraft.engine.running import Work

Pair = tuple[Work, RequestPolicy]


class Account(NamedTuple):
    """Steps and tokens of a request that nobody drafts for."""

    known: RequestPolicy
    statistics: SpeculationStatistics
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
        label: The call that all ways need, which stop by themselves; none where nobody is drafted for.
        accounts: What those that nobody drafts for had written when it was last counted; none while it is not.
        seconds: Of steps of which nothing else was noted.
    """

    places: dict[RequestPolicy, int]
    least: int
    crowd: int
    label: str | None
    accounts: list[Account] | None = None
    seconds: float = 0.0

    def serves(self, deciding: Sequence[Pair], crowd: int) -> bool:
        places = self.places
        return crowd == self.crowd and len(deciding) >= self.least and all([its in places for _, its in deciding])

    def seats(self, deciding: Sequence[Pair]) -> list[Seat]:
        """Those who are drafted for, at their places."""
        if self.label is None:
            return []
        seats, places = [], self.places
        for work, its in deciding:
            place = places[its]
            if place != PLAIN:
                work.growth = its.growth[place]
                seats.append(Seat(work, its, depth_of(work), place, its.steps))
        return seats

    def open(self, deciding: Sequence[Pair]) -> None:
        """Count from here on."""
        if self.accounts is None:
            plain = [(its, work.running.request.statistics) for work, its in deciding if self.places[its] == PLAIN]
            self.accounts = [Account(its, seen, seen.rounds, seen.committed) for its, seen in plain]

    def closed(self) -> list[Account]:
        """What has been written since it was counted last."""
        accounts, self.accounts = self.accounts or [], None
        return [account.since() for account in accounts]


def routine_of(seats: Sequence[Seat], least: int, crowd: int, room: int) -> Routine | None:
    """How to go on as in the last decision, for `least` requests or more, where that takes no thought and no more than
    `room` draft nodes; else none."""
    drafted = [seat for seat in seats if seat.known.base.place != PLAIN]
    if any([seat.known.fixed or seat.known.standing for seat in seats]):
        return None
    ways = [seat.known.ways[seat.known.base.place] for seat in drafted]
    if not all([seat.ready and way.stops for seat, way in zip(drafted, ways, strict=True)]):
        return None
    if len({way.label for way in ways}) > 1 or sum([way.nodes for way in ways]) > room:
        return None
    places = {seat.known: seat.known.base.place for seat in seats}
    return Routine(places, least, crowd, ways[0].label if ways else None)
