"""Which drafters have been of use to requests of a kind: to keep one ready costs time in every step."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from foredraft.core.request import Request

LEAST_USE = 0.05  # accepted tokens a step below which keeping a drafter ready costs more than it brings
FIRST, EVERY = 3, 8  # requests of a kind that try everybody: the first ones, then one of so many
LEAST_STEPS = 8  # of a request, for it to say anything
FOLLOW = 0.3  # weight of a new request


@dataclass(slots=True)
class Use:
    """What one drafter has brought lately: accepted tokens a step, and over how many requests."""

    accepted: float = 0.0
    requests: int = 0

    def follow(self, accepted: float) -> None:
        self.requests += 1
        self.accepted += (accepted - self.accepted) * max(FOLLOW, 1.0 / self.requests)


@dataclass(slots=True)
class Usefulness:
    """What drafters have brought, by kind of request and name.

    Attributes:
        uses: What is known.
        asked: Requests of each kind so far.
    """

    uses: dict[tuple[int, str], Use] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)

    def tries_all(self, kind: int) -> bool:
        """Whether the next request of a kind gives everybody a try."""
        count = self.asked[kind] = self.asked.get(kind, -1) + 1
        return count < FIRST or count % EVERY == 0

    def worthless(self, kind: int, name: str) -> bool:
        use = self.uses.get((kind, name))
        return use is not None and use.requests >= FIRST and use.accepted < LEAST_USE

    def saw(self, kind: int, request: Request, names: Iterable[str]) -> None:
        """A request has ended for which the drafters `names` were ready."""
        statistics = request.statistics
        if statistics.rounds >= LEAST_STEPS:
            for name in names:
                use = self.uses.setdefault((kind, name), Use())
                use.follow(statistics.accepted_by.get(name, 0) / statistics.rounds)
