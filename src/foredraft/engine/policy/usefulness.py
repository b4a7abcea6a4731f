"""Which drafters have been of use to requests of a kind: to keep one ready costs time in every step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEAST_USE = 0.03  # share of plain decoding's time that a drafter must save: keeping it ready costs about that much
FIRST = 3  # requests of a kind that keep a drafter ready before it is judged
EVERY, SELDOM = 8, 64  # one of so many requests tries one of no use again, ever fewer while it stays so
LEAST_STEPS = 8  # of a request, for it to say anything
FOLLOW = 0.3  # weight of a new request


@dataclass(slots=True)
class Use:
    """What one drafter has been worth to requests of one kind.

    Attributes:
        saved: Time it has saved lately, as a share of what their steps take when nobody drafts.
        requests: Those that had it ready.
        idle, patience: Requests that went without it since, and after how many the next one tries it.
    """

    saved: float = 0.0
    requests: int = 0
    idle: int = 0
    patience: int = EVERY

    @property
    def worthless(self) -> bool:
        return self.requests >= FIRST and self.saved < LEAST_USE

    def follow(self, saved: float) -> None:
        self.requests += 1
        self.saved += (saved - self.saved) * max(FOLLOW, 1.0 / self.requests)
        self.patience = self.patience if self.worthless else EVERY

    def turn(self) -> bool:
        """Another request comes: whether it is to have the drafter ready."""
        self.idle += 1
        if self.worthless and self.idle < self.patience:
            return False
        self.patience = min(2 * self.patience, SELDOM) if self.worthless else EVERY
        self.idle = 0
        return True


@dataclass(slots=True)
class Usefulness:
    """What drafters have been worth, by kind of request and drafter."""

    uses: dict[tuple[int, str], Use] = field(default_factory=dict)

    def kept(self, kind: int, owners: Iterable[str]) -> set[str]:
        """Which of the drafters the next request of a kind is to have ready."""
        return {owner for owner in owners if self.uses.setdefault((kind, owner), Use()).turn()}

    def saw(self, kind: int, steps: int, saved: Mapping[str, float]) -> None:
        """A request has ended after so many steps; each of its drafters has saved so many plain steps, or cost them
        where negative."""
        if steps >= LEAST_STEPS:
            for owner, plain_steps in saved.items():
                self.uses.setdefault((kind, owner), Use()).follow(plain_steps / steps)
