"""A request at the table of one step: what it may be drafted, and what was chosen for it."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.request import Request
from foredraft.drafters.growth import FREE, Growth
from foredraft.engine import step
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan, Prices, Values, soundest
from foredraft.engine.policy.live_costs import LiveCosts, size_class
from foredraft.engine.policy.pace import calls_to_come
from foredraft.engine.policy.request_policy import MANY_CLASS, RequestPolicy
from foredraft.engine.running import Work
from foredraft.model.slot_pool import SlotPool

CROWD_EDGES = (1, 7)  # requests
CUTTING = 1.5e-4  # seconds that a draft takes which has to be weighed and cut in every step


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

    def further(self, path: Sequence[int]) -> float:
        """How likely one of the nodes left out would have gone on where `path` of the nodes kept ended."""
        if len(self.nodes) == len(self.tree):
            return 0.0
        end = self.nodes[path[-1]] if path else ROOT
        whole, kept = self.rates[end] if path else 1.0, set(self.nodes)
        left = [i for i, parent in enumerate(self.tree.parents) if parent == end and i not in kept]
        return min(1.0, sum(self.rates[node] for node in left) / whole) if whole else 0.0

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
        place: The way chosen for it; `PLAIN` for none.
        step: The request's step.
        offers: Instant drafts, by way.
        told: Whether what became of its draft is learned otherwise.
    """

    work: Work
    known: RequestPolicy
    depth: int
    place: int = PLAIN
    step: int = 0
    offers: dict[int, Offer] = field(default_factory=dict)
    told: bool = False

    @property
    def begins(self) -> bool:
        """Whether it is at the end of its prompt, or comes to the table for the first time."""
        return self.work.chunk > 1 or self.step == 0

    def unread(self, owner: str) -> int:
        """Positions of the text that a drafter reads for its first draft."""
        return 0 if owner in self.known.called else len(self.work.running.request.tokens)

    def menu(self, reading: Callable[[str, int], float], called: float = 1.0, *, hopeful: bool = True) -> list[Plan]:
        """Plans to decide between; one where nothing is to be chosen.

        Args:
            reading: Says how many seconds a drafter takes to read so many positions for the first time.
            called: In how many of the steps still to come it is called.
            hopeful: As in `RequestPolicy.plan`.
        """
        if self.known.fixed:
            return [self.known.plan(0, self.known.ways[0].depth)]
        if self.work.chunk > 1:  # the end of a prompt: what drafters need of it is not there yet
            return [NOTHING]
        return [self.with_toll(plan, reading, called) for plan in self.known.menu(self.depth, hopeful=hopeful)]

    def with_toll(self, plan: Plan, reading: Callable[[str, int], float], called: float) -> Plan:
        """The plan with what cutting its drafts takes, and with what its drafter's first reading of the text comes to
        in each of its calls."""
        owner, request = self.known.owner(plan.place), self.work.running.request
        if owner is None:
            return plan
        cutting = 0.0 if self.known.ways[plan.place].stops else CUTTING
        if owner in self.known.called:
            return plan._replace(toll=cutting) if cutting else plan
        seconds = reading(owner, len(request.tokens))
        calls = calls_to_come(called, request.remaining, plan.gain)
        return plan._replace(reading=seconds, toll=cutting + seconds / calls)

    def asks(self, place: int, price: float) -> bool:
        """Whether to ask an instant way whose call costs as much as `price` tokens."""
        return self.lacks(place) and self.known.asks(place, price)

    def lacks(self, place: int) -> bool:
        """Whether no other instant way has yet offered as much as this one usually does."""
        return not self.offers or max(offer.gain for offer in self.offers.values()) <= self.known.usual_gain(place)

    def offer(self, tree: DraftTree) -> None:
        """The draft by the way chosen is there."""
        self.offers[self.place] = self.whole(tree)

    def whole(self, tree: DraftTree) -> Offer:
        """All of a draft by the way chosen."""
        rates = self.known.path_rates(self.place, tree) if len(tree) else []
        return Offer(tree, rates, list(range(len(tree))))

    def limit(self, costs: LiveCosts, values: Values, sharing: int, requests: int) -> None:
        """Say what another token of the draft costs, to draft together with those of all `sharing` the call and to
        verify beside those of so many `requests`; until the next decision."""
        key = (self.place, size_class(requests))
        if key not in self.known.growth:
            self.known.growth[key] = self.growth(costs, values, sharing, requests)
        self.work.growth = self.known.growth[key]

    def growth(self, costs: LiveCosts, values: Values, sharing: int, requests: int) -> Growth:
        """As `limit`, of a draft of a new decision; a fixed one is as long as it was asked to be.

        So is a network's as long as nobody knows what its chances are worth: one that is too modest would never draft
        anything else, and never be found out.
        """
        known, row, steps = self.known, 0.0, ()
        way = known.ways[self.place]
        if known.fixed or not (way.instant or known.proven(self.place)):
            return FREE
        if self.place in known.instant and known.crowd:
            row = values.least_row(requests)
        elif way.stepwise and way.stops:
            steps = values.steps_with(way.label, sharing * way.depth, requests)
        else:
            row = values.another_row(known.usual_rows(self.place), requests, called=not way.instant)
        run = values.rate_with(requests) * costs.another_token(way, *known.lengths[way.kind], sharing)
        return Growth(known.candour(self.place), row, run, known.onward(self.place), steps)

    def take(self, plan: Plan, menu: Sequence[Plan], values: Values) -> None:
        """From now on this is its plan, or to ask where that is worth more; of a `menu` of so many `values`."""
        self.known.decided(self.at_least_asking(plan, values), menu, values)

    def at_least_asking(self, plan: Plan, values: Values) -> Plan:
        """The plan chosen, or to ask a way whose call is shared by all and who leaves out what is not worth its row,
        where such calls have been worth their time, and more than the plan."""
        known = self.known
        for place in known.asked_by_all if self.work.chunk == 1 else ():
            worth = known.asked_worth(place)
            if worth <= known.asking_price(place, values):
                known.leaves(place)
            elif plan.place == PLAIN or worth > values.of(plan):
                rows = known.usual_rows(place)
                return Plan(known.ways[place].label, min(worth, rows), min(worth, rows), round(rows), place)
        return plan

    @property
    def expected(self) -> float:
        """Accepted tokens of a draft by the way chosen."""
        depth = min(self.depth, self.known.ways[self.place].depth)
        return self.known.plan(self.place, depth, hopeful=False).gain

    def best(self, values: Values) -> tuple[Plan, Plan, Plan]:
        """The plan decided, or an instant draft worth more; the same where its call is made anyhow; and the instant
        draft that is worth most, or nothing, where there is a choice."""
        base = self.known.base
        if base.fixed:
            return base, base, base
        instant, most = NOTHING, values.of(NOTHING)
        for place, offer in self.offers.items():
            plan = offer.plan(place)
            worth = values.of(plan)
            if worth > most:
                instant, most = plan, worth
        apart = instant if instant is not NOTHING and most > values.of(base) else base
        called = instant if values.beside_call(instant) > values.beside_call(base) else base
        return apart, called, instant

    def learn(self, row_price: float, *, teaches: bool, stands_for: int = 1, counted: bool = False) -> None:
        """Note what the draft has brought, each row of it at the cost of so many tokens; what its drafter said of it is
        checked where the step `teaches`. It `stands_for` so many steps alike; `counted` where what asking for all is
        worth is not learned from it."""
        if self.place == PLAIN:
            return
        known, tree, path = self.known, self.work.tree, self.work.path
        if teaches and not self.told:
            known.check(self.place, tree, path)
        if self.place in known.asked_by_all:
            known.learn_rows(self.place, len(tree))
            if not counted:
                known.saw_asked(self.place, len(path) - row_price * len(tree), stands_for)
        else:
            self.hear()
        lost = row_price * len(tree) - len(path) + known.forgone(self.place)
        known.charge(self.place, stands_for * lost)

    def hear(self) -> None:
        """Note what became of the draft, if it is of a way that is decided about."""
        if self.place not in self.known.instant:
            self.learn_of_draft()

    def learn_of_draft(self) -> None:
        """Note what became of the draft by the way chosen, one that is not instant.

        Beside others it was cut to what paid then, and the next one will be: only what was verified counts. Alone, what
        was left out is believed to be worth what its drafter said, since the next one may go elsewhere. Behind a chain
        that ended by itself, when all of it was accepted, the next token is believed to be as likely as behind
        others, unless it was cut beside many: else chains cut where they were dear would never be believed to go on.
        """
        known, tree, path, further, offer = self.known, self.work.tree, self.work.path, 0.0, self.offers.get(self.place)
        if known.crowd == 0 and offer:
            tree, further = offer.tree, offer.further(path)
        elif known.crowd < MANY_CLASS and 0 < len(path) == len(tree) and known.ends_itself(self.place):
            further = known.onward(self.place)
        known.learn(self.place, tree, path, self.depth, self.step, further)

    def judge(self, values: Values) -> None:
        """Note what each instant draft is worth beyond those before it: two that find the same are not both worth
        asking."""
        top = values.of(self.known.base)
        for place, offer in self.offers.items():
            worth = values.of(offer.plan(place))
            self.known.saw_worth(place, offer.gain, max(0.0, worth - top))
            top = max(top, worth)


def best_together(seats: Sequence[Seat], values: Values, prices: Prices) -> list[Plan]:
    """What was decided, but for instant drafts worth more. A call of a drafter takes hardly less where fewer share it:
    so who has an instant draft goes without the call where most others do, and with it where they do not."""
    if not any(seat.offers for seat in seats):
        return [seat.known.base for seat in seats]
    apart, called, instant = map(list, zip(*[seat.best(values) for seat in seats], strict=True))
    if len(apart) == 1 or len({plan.label is None for plan in apart}) == 1:
        return apart
    return soundest([apart, called, instant], prices)


def place_drafts(drafts: Sequence[tuple[Seat, DraftTree]], seats: Sequence[Seat], most: int, pool: SlotPool) -> None:
    """Give drafts of some of the `seats` their slots; one larger than expected goes without where it would break the
    step's limit of `most` nodes."""
    placed = sum(len(seat.work.tree) for seat in seats)
    for seat, tree in drafts:
        if seat.known.fixed or placed + len(tree) <= most:
            step.place_draft(seat.work, tree, pool)
            placed += len(tree)


def depth_of(work: Work) -> int:
    """Longest draft that could be written whole."""
    return work.running.request.remaining - 1


def crowd_class(requests: int) -> int:
    """Steps whose rows cost alike: of one request, of a few, of many."""
    return bisect_left(CROWD_EDGES, requests)


def temperature_class(request: Request) -> int:
    """Requests that accept alike: greedy ones, cool ones, warm ones."""
    temperature = request.params.temperature
    return 0 if temperature == 0 else 1 if temperature < 0.7 else 2
