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
        drafts: Whether anybody is drafted for: by ways that stop by themselves.
        accounts: What all had written when it was last counted; none while it is not.
        seconds: Of steps of which nothing else was noted.
    """

    places: dict[RequestPolicy, int]
    least: int
    crowd: int
    drafts: bool
    anybody: bool = False
    accounts: list[Account] | None = None
    seconds: float = 0.0

    def serves(self, deciding: Sequence[Pair], crowd: int) -> bool:
        """Whether it is good for these requests; who is at the end of a prompt is not drafted for."""
        if self.anybody:
            return crowd == self.crowd and not any([its.fixed for _, its in deciding])
        places = self.places
        alike = (crowd == 0) == (self.crowd == 0) and len(deciding) >= self.least
        return alike and all([its in places or work.chunk > 1 for work, its in deciding])

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


def routine_of(seats: Sequence[Seat], least: int, crowd: int, room: int, *, anybody: bool = False) -> Routine | None:
    """How to go on as in the last decision, for `least` requests or more, or for `anybody`, where that takes no thought
    and no more than `room` draft nodes; else none."""
    drafted = [seat for seat in seats if seat.known.base.place != PLAIN]
    if any([seat.known.fixed or seat.known.standing for seat in seats]):
        return None
    ways = [seat.known.ways[seat.known.base.place] for seat in drafted]
    if not all([way.stops for way in ways]) or sum([way.nodes for way in ways]) > room:
        return None
    return Routine({seat.known: seat.known.base.place for seat in seats}, least, crowd, bool(ways), anybody)
