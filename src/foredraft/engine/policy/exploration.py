"""How much may be spent on finding out: a bounded share of the time, booked in seconds."""

from dataclasses import dataclass

LEAST_SHARE = 0.01  # of the busy seconds, where plain decoding is the best that is known
GAIN_SHARE = 0.025  # and of the seconds that speculation saves
FIRST_STEPS = 8  # plain steps that may be spent before there is a share of anything


@dataclass(slots=True)
class Exploration:
    """Seconds that choices other than the best known one have cost, gains among them counted against it.

    Attributes:
        busy: Seconds of all steps.
        allowed: Seconds that may be spent.
        spent: What experiments, plain shadow steps included, took longer than the best known choice would have.
        tries: How many there were.
        looked: Steps that costs had been learned from when a step of a new size was last let through.
    """

    busy: float = 0.0
    spent: float = 0.0
    tries: int = 0
    allowed: float = 0.0
    looked: int = -1

    def affords(self, loss: float, plain_step: float) -> bool:
        """Whether another experiment may be made that is expected to lose so many seconds."""
        return self.spent + loss <= self.allowed + FIRST_STEPS * plain_step

    def grow(self, seconds: float, speed_up: float) -> None:
        """A step has taken so many seconds, at an expected speed-up: who gains more can afford to try more."""
        self.busy += seconds
        self.allowed += seconds * (LEAST_SHARE + GAIN_SHARE * max(0.0, 1.0 - 1.0 / speed_up))

    def grant(self, seconds: float) -> None:
        self.allowed += seconds

    def book(self, loss: float) -> None:
        """An experiment has lost so many seconds; gained them where negative."""
        self.tries += 1
        self.spent = max(self.spent + loss, 0.0)

    @property
    def share(self) -> float:
        """What experiments have lost, as a share of the busy time."""
        return self.spent / self.busy if self.busy else 0.0
