"""A request at the table of one step: what it may be drafted, and what was chosen for it."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan, Values
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.trimming import STRIDE, best_nodes
from foredraft.engine.running import Work


@dataclass(slots=True)
class Offer:
    """An instant draft that is already there.

    Attributes:
        tree: All of it.
        rates: How likely each node is to be accepted together with all its ancestors, [N].
        nodes: Those worth verifying, ascending.
        gain: Their expected accepted tokens.
    """

    tree: DraftTree
    rates: list[float]
    nodes: list[int]
    gain: float = field(init=False)

    def __post_init__(self) -> None:
        self.keep(self.nodes)

    def keep(self, nodes: list[int]) -> None:
        """These nodes are worth verifying."""
        self.nodes = nodes
        self.gain = sum(self.rates) if len(nodes) == len(self.rates) else sum([self.rates[node] for node in nodes])

    @property
    def kept(self) -> DraftTree:
        """The nodes worth verifying."""
        return self.tree if len(self.nodes) == len(self.tree) else self.tree.only(self.nodes)

    def plan(self, place: int) -> Plan:
        return Plan(None, self.gain, self.gain, len(self.nodes), place)


def cut(offers: Sequence[Offer], seconds: Callable[[int], float], *, sure: float) -> None:
    """Leave those nodes over all offers that together make the most tokens a second, `sure` ones beside them.

    Args:
        seconds: What the step takes with so many nodes.
    """
    rates = [rate for offer in offers for rate in offer.rates]
    kept = best_nodes(rates, seconds, sure=sure, stride=max(STRIDE, len(offers)))
    first = 0
    for offer in offers:
        last = first + len(offer.rates)
        offer.keep([node - first for node in kept[bisect_left(kept, first) : bisect_left(kept, last)]])
        first = last


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
        """Whether to ask an instant way whose call costs as much as `price` tokens."""
        return self.lacks(place) and self.known.asks(place, price)

    def lacks(self, place: int) -> bool:
        """Whether no other instant way has yet offered as much as this one usually does."""
        return not self.offers or max(offer.gain for offer in self.offers.values()) <= self.known.usual_gain(place)

    def best(self, values: Values) -> Plan:
        """The plan decided, or an instant draft worth more."""
        best, top = self.known.base, values.of(self.known.base)
        for place, offer in self.offers.items():
            plan = offer.plan(place)
            worth = values.of(plan)
            if worth > top:
                best, top = plan, worth
        return best

    def judge(self, values: Values) -> None:
        """Note what each instant draft is worth beyond those before it: two that find the same are not both worth
        asking."""
        top = values.of(self.known.base)
        for place, offer in self.offers.items():
            worth = values.of(offer.plan(place))
            self.known.saw_worth(place, offer.gain, max(0.0, worth - top))
            top = max(top, worth)


def depth_of(work: Work) -> int:
    """Longest draft that could be written whole."""
    return work.running.request.remaining - 1


def temperature_class(request: Request) -> int:
    """Requests that accept alike: greedy ones, cool ones, warm ones."""
    temperature = request.params.temperature
    return 0 if temperature == 0 else 1 if temperature < 0.7 else 2
