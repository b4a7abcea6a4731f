"""Spends a step's drafts where expected committed tokens per second are highest, over the whole batch (as SmartSpec,
Liu et al. 2406.14066, does with one length for all; here each request has its own drafter, length and shape).

With n requests, expected accepted tokens g_i and draft nodes r_i, a step takes F(n + sum r_i) and each drafter call its
own time D; what is to be made large is (n + sum g_i) / (F + sum D). At the best rate, a plan is worth its gain less
what its seconds would bring elsewhere, gain - rate * seconds, so the choice splits by request once the rate is known.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

from foredraft.engine.policy.pace import Pace

SWEEPS = 2
NEAR, FEW = 8, 8  # rows
LEAST_LINE = 32  # the same
CHEAPEST = 0.5  # of what a row costs on average: some of a block are nearly free
MARGIN = 0.06  # tokens that a draft must gain beyond its cost: estimates are not better than that
MARGIN_BESIDE = 0.1  # the same beside others: some then end sooner, and the rest share their steps with fewer


class Plan(NamedTuple):  # a tuple is made and read fastest; there are some for each request and step
    """One way to serve one request in a step.

    Attributes:
        label: The drafter call it needs; none for plain decoding and for a draft that is already there.
        gain: Expected accepted tokens.
        hoped: As `gain`, as high as it may reasonably be.
        rows: Draft nodes it brings to the target's forward.
        place: What it stands for; the caller's own.
        urgency: How much there is to find out by trying it; 0 for nothing.
        fixed: Whether the request has no other.
        reading: Seconds that its drafter's first reading of the text takes.
        toll: Seconds a step that this comes to, over the steps still to come.
    """

    label: str | None
    gain: float
    hoped: float
    rows: int
    place: int
    urgency: float = 0.0
    fixed: bool = False
    reading: float = 0.0
    toll: float = 0.0


PLAIN = -1  # place of the plan that drafts nothing
NOTHING = Plan(None, 0.0, 0.0, 0, PLAIN)


class Prices(Protocol):
    """What a step and its drafter calls cost, in seconds."""

    def step(self, draft_rows: int) -> float:
        """The step without drafting, with so many draft nodes over all requests."""

    def about(self, draft_rows: int) -> float:
        """The same where drafts are still to be made, and end where more does not pay."""

    def draft(self, label: str, requests: int) -> float:
        """One drafter call for so many requests."""

    def more(self, first: int, last: int, *, called: bool) -> float:
        """What a step takes longer with `last` draft nodes than with `first`; `called` where a network drafts them."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A plan for each request.

    Attributes:
        chosen: The plans.
        rate: Expected committed tokens per second.
    """

    chosen: list[Plan]
    rate: float


def allocate(menus: Sequence[Sequence[Plan]], prices: Prices) -> Allocation:
    """The best plan for each request; `menus` [n] hold each request's plans, plain decoding among them."""
    if len(menus) == 1:
        return best_alone(menus[0], prices)
    best = improved(best_uniform(menus, prices), menus, prices)
    return Allocation(best, rate_of(best, prices))


def best_alone(menu: Sequence[Plan], prices: Prices) -> Allocation:
    """The plan of the highest rate for a request alone: the common case, and asked in every step."""
    best, top, rate = menu[0], 0.0, 0.0
    for plan in menu:
        seconds = prices.step(plan.rows) + plan.toll
        if plan.label is not None:
            seconds += prices.draft(plan.label, 1)
        speed = (1.0 + plan.gain - (MARGIN if plan.rows else 0.0)) / seconds
        if speed > top:
            best, top, rate = plan, speed, (1.0 + plan.gain) / seconds
    return Allocation([best], rate)


def rate_of(chosen: Sequence[Plan], prices: Prices) -> float:
    """Expected committed tokens per second."""
    return (len(chosen) + sum(plan.gain for plan in chosen)) / step_seconds(chosen, prices)


def sound_rate(chosen: Sequence[Plan], prices: Prices) -> float:
    """As `rate_of` of several requests, each draft less what it must gain beyond its cost."""
    gain = sum([plan.gain - MARGIN_BESIDE for plan in chosen if plan.rows])
    return (len(chosen) + gain) / step_seconds(chosen, prices)


def step_seconds(chosen: Sequence[Plan], prices: Prices) -> float:
    """What a step takes, the drafter calls included that these plans need."""
    rows, tolls, calls = 0, 0.0, {}
    for plan in chosen:
        rows += plan.rows
        if plan.label is not None:
            tolls += plan.toll
            calls[plan.label] = calls.get(plan.label, 0) + 1
    step = prices.about(rows) if calls and len(chosen) > 1 else prices.step(rows)
    return step + tolls + sum([prices.draft(label, count) for label, count in calls.items()])


def row_price(rows: int, rate: float, prices: Prices) -> float:
    """Tokens that each of so many rows costs on average, of some at least: rows come in blocks, of which the first are
    nearly free, and once all drafts are there they are cut to what pays together."""
    rows = max(rows, NEAR)
    return max(0.0, rate * (prices.about(rows) - prices.step(0)) / rows)


def best_uniform(menus: Sequence[Sequence[Plan]], prices: Prices) -> list[Plan]:
    """The best choice in which all requests that draft use the same drafter call, or drafts that are there."""
    ends = [ends_of(menu) for menu in menus]
    labels = dict.fromkeys([label for own in ends for label in own])
    choices = [[longest(own, label, menu) for own, menu in zip(ends, menus, strict=True)] for label in labels]
    for label in labels:
        choices.append([own[label][0] if label in own else menu[0] for own, menu in zip(ends, menus, strict=True)])
    return soundest(choices, prices)


Ends = dict[str | None, tuple[Plan, Plan]]


def ends_of(menu: Sequence[Plan]) -> Ends:
    """The plan of each label that brings fewest rows, and that of the highest gain."""
    ends: Ends = {}
    for plan in menu:
        shortest, longest = ends.get(plan.label, (plan, plan))
        ends[plan.label] = (
            plan if plan.rows < shortest.rows else shortest,
            plan if plan.gain > longest.gain else longest,
        )
    return ends


def soundest(choices: Sequence[list[Plan]], prices: Prices) -> list[Plan]:
    return max(choices, key=lambda chosen: sound_rate(chosen, prices))


def longest(ends: Ends, label: str | None, menu: Sequence[Plan]) -> Plan:
    """The plan of the highest gain among those of `label` or of none; who has neither keeps its first plan."""
    plans = [ends[its][1] for its in {None, label} if its in ends]
    return max(plans, key=lambda plan: plan.gain, default=menu[0])


def improved(chosen: list[Plan], menus: Sequence[Sequence[Plan]], prices: Prices) -> list[Plan]:
    """Let each request take the plan that is worth most at the rate reached, while that raises the rate."""
    for _ in range(SWEEPS):
        values = Values(chosen, rate_of(chosen, prices), prices)
        fresh = [max(menu, key=values.of) for menu in menus]
        if soundest([chosen, fresh], prices) is chosen:
            break
        chosen = fresh
    return chosen


class Values:
    """What plans are worth, in tokens, beside what the batch has chosen: gain less rate times marginal seconds.

    For a request alone in its step these seconds are known exactly; beside others rows have a price each.
    """

    def __init__(self, chosen: Sequence[Plan], rate: float, prices: Prices) -> None:
        self.chosen, self.rate, self.prices = chosen, rate, prices
        self.requests, self.alone = len(chosen), len(chosen) == 1
        self.rows = sum([plan.rows for plan in chosen])
        self.row_price = 0.0 if self.alone else row_price(self.rows, rate, prices)
        self.calls = Counter(plan.label for plan in chosen)
        self.pace = Pace()  # of steps by this choice and by instant drafts
        self.shares: dict[tuple[str, int], float] = {}
        self.blocks: dict[tuple[str, int, int, int | None], tuple[float, ...]] = {}
        self.lines: dict[int, list[float]] = {}

    @property
    def token(self) -> float:
        """Seconds that each token would take where nobody drafts."""
        return self.prices.step(0) / self.requests

    def of(self, plan: Plan) -> float:
        return plan.gain - self.cost(plan) - (MARGIN if plan.rows else 0.0)

    def cost(self, plan: Plan) -> float:
        """Tokens that the plan's rows and its share of a drafter call cost."""
        return self.own_cost(plan) + (self.share(plan.label, max(self.calls[plan.label], 1)) if plan.label else 0.0)

    def beside_call(self, plan: Plan) -> float:
        """As `of`, where the drafter call is made for others anyhow: to take part in it costs next to nothing."""
        return plan.gain - self.own_cost(plan)

    def shared_cost(self, plan: Plan) -> float:
        """As `cost`, were everybody to take part in the call."""
        return self.own_cost(plan) + (self.share(plan.label, self.requests) if plan.label else 0.0)

    def hope(self, plan: Plan) -> float:
        """What the plan may reasonably be worth at best, were everybody to take part in its call."""
        return plan.hoped - self.shared_cost(plan)

    def own_cost(self, plan: Plan) -> float:
        """Tokens that the plan's rows and its drafter's first reading of the text cost."""
        return self.rows_cost(plan.rows) + self.rate * plan.toll

    def rows_cost(self, rows: int) -> float:
        return self.rate * self.prices.step(rows) if self.alone else self.row_price * rows

    def rate_with(self, requests: int) -> float:
        """Tokens per second of so many requests: where some have ended since, a second brings fewer."""
        return self.rate * requests / self.requests

    def another_row(self, rows: float, requests: int, *, called: bool = True) -> float:
        """Tokens that the row of one more drafted token costs one of so many requests, whose drafts usually have so
        many `rows`; beside others the last one of everybody's, at the pace that steps have had. `called` where a
        network drafts."""
        first, last, rate = round(rows), round(rows) + FEW, self.rate_with(requests)
        if not self.alone:
            usual = self.pace.nodes if self.pace.seen else self.rows / self.requests
            last = max(round(usual * requests), 2 * requests)  # that anybody drafts is paid already
            first, rate = last - requests, self.pace_rate(requests)
        return max(0.0, rate * self.prices.more(first, last, called=called) / (last - first))

    def steps_with(self, label: str, nodes: int, requests: int, beside: int | None = None) -> tuple[float, ...]:
        """Tokens that a step of so many requests costs with 0 to `nodes` nodes of drafts that a call makes together,
        `beside` so many of others, as many as were chosen unless it is known: never less than with fewer nodes."""
        key = (label, nodes, requests, beside)
        if key not in self.blocks:
            if beside is None:
                others = sum([plan.rows for plan in self.chosen if plan.label != label])
                beside = round(others * requests / self.requests)
            longer = [self.prices.more(beside, beside + count, called=True) for count in range(nodes + 1)]
            rate = self.rate_with(requests)
            self.blocks[key] = tuple([rate * seconds for seconds in accumulate(longer, max)])
        return self.blocks[key]

    def nodes_cost(self, requests: int, nodes: int) -> Sequence[float]:
        """Tokens that a step of so many requests costs with 0 to `nodes` draft nodes or more: never less than with
        fewer, at the pace that steps have had."""
        costs = self.lines.get(requests, ())
        if len(costs) <= nodes:
            first = requests - self.requests  # where some have ended since, their rows are missing
            places = [max(0, first + count) for count in range(max(nodes, LEAST_LINE) + 1)]
            longer = [self.prices.more(0, place, called=False) for place in places]
            rate = self.pace_rate(requests)
            costs = self.lines[requests] = [rate * seconds for seconds in accumulate(longer, max)]
        return costs

    def least_row(self, requests: int) -> float:
        """Tokens below which a row is hardly ever worth verifying: of drafts that are weighed together once they are
        there."""
        return self.nodes_cost(requests, LEAST_LINE)[LEAST_LINE] / LEAST_LINE * CHEAPEST

    def pace_rate(self, requests: int) -> float:
        """Tokens per second of so many requests, at the pace that steps have had where that is faster than decided:
        instant drafts come beside."""
        return max(self.rate_with(requests), self.pace.speed * requests)

    def share(self, label: str, requests: int) -> float:
        key = (label, requests)
        if key not in self.shares:
            self.shares[key] = self.rate * self.prices.draft(label, requests) / requests
        return self.shares[key]
