"""A world with known costs and acceptance, to see how far the policy's choices are from the best ones.

Times are in units of a plain step of one request. A drafter's true acceptance at each depth is given by text; what is
accepted is drawn from it.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import Random

from foredraft.core.draft_tree import DraftTree
from foredraft.engine.policy.acceptance import Past
from foredraft.engine.policy.allocation import PLAIN, Plan, rate_of
from foredraft.engine.policy.decision import Decider, Decision, StepPrices
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.engine.way import Way

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def step_costs(row_cost: float, flat: int, drafts: dict[str, tuple[float, float]]) -> StepCosts:
    """Forwards that cost 1 up to `flat` rows and `row_cost` for each further one; drafter calls of a fixed part and a
    part for each request."""
    forwards = tuple(
        ForwardCost(rows=rows, requests=n, context=0, seconds=1 + row_cost * max(0, rows - flat))
        for n in (1, 4, 16)
        for rows in SIZES
        if rows >= n
    )
    calls = {
        label: tuple(DraftCost(requests=n, seconds=fixed + each * n) for n in (1, 4, 16))
        for label, (fixed, each) in drafts.items()
    }
    return StepCosts(forwards=forwards, drafts=calls)


@dataclass
class World:
    """A policy at work on simulated requests.

    Attributes:
        costs: True costs; the policy is told `believed` where those differ.
        ways: Ways to draft, the same for every request.
        accept: True acceptance at each depth, given the one before, by kind of way; may be changed on the way.
    """

    costs: StepCosts
    ways: list[Way]
    accept: dict[str, float]
    requests: int = 1
    seed: int = 0
    believed: StepCosts | None = None
    noise: float = 0.0
    past: Past = field(default_factory=Past)
    decider: Decider = field(default_factory=Decider)
    lost: list[float] = field(default_factory=list)
    chosen: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.live = LiveCosts(self.believed or self.costs)
        self.known = [RequestPolicy(self.ways, self.past, 0) for _ in range(self.requests)]

    def renew(self) -> None:
        """New requests take the place of the old ones; what the policy has learned over all stays."""
        self.known = [RequestPolicy(self.ways, self.past, 0) for _ in range(self.requests)]

    def true_plan(self, place: int) -> Plan:
        """What a way really brings."""
        if place == PLAIN:
            return Plan(None, 0.0, 0.0, 0, PLAIN)
        way = self.ways[place]
        gain = sum(self.accept[way.kind] ** depth for depth in range(1, way.depth + 1))
        return Plan(way.label, gain, gain, way.nodes, place)

    def prices(self, costs: LiveCosts) -> StepPrices:
        return StepPrices(costs, requests=self.requests, context=0, sampled=False)

    def best_rate(self) -> float:
        """The highest rate that one way for all requests could reach."""
        prices = self.prices(LiveCosts(self.costs))
        places = [PLAIN, *range(len(self.ways))]
        return max(rate_of([self.true_plan(place)] * self.requests, prices) for place in places)

    def run(self, steps: int) -> None:
        """Some steps; `lost` gains, for each, the share of the best rate that its choice gave away in expectation."""
        for _ in range(steps):
            prices = self.prices(self.live)
            exploring = self.decider.explores(prices.step(0))
            menus = [known.menu(100, hopeful=exploring) for known in self.known]
            decision = self.decider.decide(menus, [1000] * self.requests, prices, exploring=exploring)
            experiment = decision.experiment
            plans = experiment.applied(decision.chosen) if experiment else decision.chosen
            self.decider.note(plans, prices)
            self.chosen.append([plan.place for plan in plans])
            true = [self.true_plan(plan.place) for plan in plans]
            self.lost.append(1 - rate_of(true, self.prices(LiveCosts(self.costs))) / self.best_rate())
            self.learn(true, decision)

    def learn(self, true: list[Plan], decision: Decision) -> None:
        prices = self.prices(LiveCosts(self.costs))
        rows = sum(plan.rows for plan in true)
        seconds = prices.step(rows) * (1 + self.noise * self.random.uniform(-1, 1))
        self.live.saw_step(self.requests + rows, self.requests, 0, False, seconds)
        calls = Counter(plan.label for plan in true if plan.label)
        seconds += sum(prices.draft(label, n) for label, n in calls.items())
        self.decider.exploration.grow(seconds, self.decider.recent)
        accepted = [self.accepted(self.ways[plan.place]) if plan.place != PLAIN else 0 for plan in true]
        for known, plan, count in zip(self.known, true, accepted, strict=True):
            if plan.place != PLAIN:
                chain = DraftTree.chain(list(range(self.ways[plan.place].nodes)), "simulated")
                known.learn(plan.place, chain, list(range(count)), self.ways[plan.place].depth, known.steps)
                known.taken_in()
            known.steps += 1
        if decision.experiment is not None:
            self.decider.exploration.book(decision.experiment.lost(accepted, decision.values.rate))

    def accepted(self, way: Way) -> int:
        depth = 0
        while depth < way.depth and self.random.random() < self.accept[way.kind]:
            depth += 1
        return depth


def way(label: str, kind: str, depth: int, nodes: int | None = None) -> Way:
    return Way(label, kind, kind, depth, nodes or depth)
