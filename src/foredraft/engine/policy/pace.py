"""How steps of several requests have lately gone: a decision is made as if there were no instant drafts."""

from dataclasses import dataclass

FOLLOW = 0.05  # weight of a new step
SELDOM = 0.3  # how often a drafter is taken to be called at least: or it would be for nobody, and nobody would know


@dataclass(slots=True)
class Pace:
    """What each request of a step has had and brought.

    Attributes:
        nodes: Draft nodes.
        speed: Tokens a second.
        seen: Whether there was any step.
        called: How often the drafter decided is called for a request once instant drafts have been looked at.
    """

    nodes: float = 0.0
    speed: float = 0.0
    seen: bool = False
    called: float = 1.0

    def follow(self, nodes: float, speed: float, steps: int) -> None:
        """So many further steps were like this on average."""
        weight = 1.0 - (1.0 - FOLLOW) ** steps if self.seen else 1.0
        self.nodes += weight * (nodes - self.nodes)
        self.speed += weight * (speed - self.speed)
        self.seen = True

    def saw_called(self, share: float) -> None:
        """In a step drafters were called for such a share of those that may be."""
        self.called = max(SELDOM, self.called + FOLLOW * (share - self.called))


def calls_to_come(called: float, remaining: int, gain: float) -> float:
    """How often a drafter is still called for a request that has so many tokens to write, where it is called in such a
    share of the steps and each of its drafts brings `gain` tokens; once at least."""
    return max(1.0, called * remaining / (1.0 + gain))
