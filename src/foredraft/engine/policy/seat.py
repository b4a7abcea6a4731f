"""A request at the table of one step: what it may be drafted, and what was chosen for it."""

from dataclasses import dataclass, field

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan, Values
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.running import Work


@dataclass(frozen=True, slots=True)
class Offer:
    """An instant draft that is already there.

    Attributes:
        tree: All of it.
        nodes: Those worth verifying, ascending.
        gain: Their expected accepted tokens.
    """

    tree: DraftTree
    nodes: list[int]
    gain: float

    @property
    def kept(self) -> DraftTree:
        """The nodes worth verifying."""
        return self.tree if len(self.nodes) == len(self.tree) else self.tree.only(self.nodes)

    def plan(self, place: int) -> Plan:
        return Plan(None, self.gain, self.gain, len(self.nodes), place)


@dataclass(slots=True)
class Seat:
    """One deciding request in one step.

    Attributes:
        work: Its work.
        known: What the policy knows of it.
        depth: Longest path it may be drafted.
        offers: Instant drafts, by way.
        place: The way chosen for it; `PLAIN` for none.
    """

    work: Work
    known: RequestPolicy
    depth: int
    offers: dict[int, Offer] = field(default_factory=dict)
    place: int = PLAIN

    @property
    def id(self) -> int:
        return self.work.running.request.id

    def menu(self) -> list[Plan]:
        """Plans to decide between; one where nothing is to be chosen."""
        if self.known.fixed:
            return [self.known.plan(0, self.known.ways[0].depth)]
        if self.work.chunk > 1:  # the end of a prompt: what drafters need of it is not there yet
            return [NOTHING]
        return self.known.menu(self.depth)

    def asks(self, place: int, price: float) -> bool:
        """Whether to ask an instant way whose call costs as much as `price` tokens: not where another one has already
        offered as much as this one usually does."""
        offered = max((offer.gain for offer in self.offers.values()), default=0.0)
        return offered <= self.known.usual_gain(place) and self.known.asks(place, price)

    def best(self, values: Values) -> Plan:
        """The plan decided, or an instant draft worth more.

        What each of these is worth beyond those before it is noted: two that find the same are not both worth asking.
        """
        best, top = self.known.base, values.of(self.known.base)
        for place, offer in self.offers.items():
            plan = offer.plan(place)
            worth = values.of(plan)
            self.known.saw_worth(place, offer.gain, max(0.0, worth - top))
            if worth > top:
                best, top = plan, worth
        return best


def depth_of(work: Work) -> int:
    """Longest draft that could be written whole."""
    return work.running.request.remaining - 1


def temperature_class(request: Request) -> int:
    """Requests that accept alike: greedy ones, cool ones, warm ones."""
    temperature = request.params.temperature
    return 0 if temperature == 0 else 1 if temperature < 0.7 else 2
