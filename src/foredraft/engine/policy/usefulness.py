"""Which drafters have been of use to requests of a kind: to keep one ready costs time in every step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LEAST_USE = 0.03  # share of plain decoding's time that a drafter must save: keeping it ready costs about that much
FIRST, EVERY = 3, 8  # requests of a kind that try everybody: the first ones, then one of so many
LEAST_STEPS = 8  # of a request, for it to say anything
FOLLOW = 0.3  # weight of a new request


@dataclass(slots=True)
class Use:
    """What one drafter has saved lately, as a share of the time that its requests' steps take when nobody drafts."""

    saved: float = 0.0
    requests: int = 0

    def follow(self, saved: float) -> None:
        self.requests += 1
        self.saved += (saved - self.saved) * max(FOLLOW, 1.0 / self.requests)


@dataclass(slots=True)
class Usefulness:
    """What drafters have saved, by kind of request and drafter.

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

    def worthless(self, kind: int, owner: str) -> bool:
        use = self.uses.get((kind, owner))
        return use is not None and use.requests >= FIRST and use.saved < LEAST_USE

    def saw(self, kind: int, steps: int, saved: Mapping[str, float]) -> None:
        """A request has ended after so many steps; each of its drafters has saved so many plain steps, or cost them
        where negative."""
        if steps >= LEAST_STEPS:
            for owner, plain_steps in saved.items():
                self.uses.setdefault((kind, owner), Use()).follow(plain_steps / steps)
