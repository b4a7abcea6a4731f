"""One step's decision over the whole batch: who drafts, how much, and now and then something else, to find out."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foredraft.engine.policy.allocation import NOTHING, Allocation, Plan, Values, allocate, rate_of
from foredraft.engine.policy.exploration import Exploration
from foredraft.engine.policy.live_costs import LiveCosts

SHADOW_EVERY = 32  # decisions after which a plain one keeps the estimate of the speed-up alive
SLOW, QUICK = 0.03, 0.12  # weights of a new observation of the expected speed-up
FALLEN = 0.75  # share of the usual speed-up below which a text is taken to have changed
GRANT_STEPS = 3  # plain steps that may then be spent on experiments
LEAST_LOSS = 0.1  # tokens that an experiment is taken to lose at least
WORTH_EXPLORING = 16  # tokens a request must still have to write for an experiment to pay


@dataclass(slots=True)
class StepPrices:
    """Costs of one step.

    Attributes:
        costs: Where they come from.
        base_rows: Rows that are computed whatever is drafted: pending tokens.
        requests: How many requests are in the step.
        context: Their committed positions on average.
        sampled: Whether some of them sample.
    """

    costs: LiveCosts
    base_rows: int
    requests: int
    context: float
    sampled: bool
    steps: dict[int, float] = field(default_factory=dict)

    def step(self, draft_rows: int) -> float:
        """Never less than a step without drafts takes."""
        seconds = self.steps.get(draft_rows)
        if seconds is None:
            rows = self.base_rows + draft_rows
            seconds = self.costs.step_seconds(rows, self.requests, self.context, self.sampled)
            seconds = self.steps[draft_rows] = max(seconds, self.step(0)) if draft_rows else seconds
        return seconds

    def draft(self, label: str, requests: int) -> float:
        return self.costs.draft_seconds(label, requests)

    @property
    def token(self) -> float:
        """What a token takes where nobody drafts."""
        return self.step(0) / self.requests


@dataclass(frozen=True, slots=True)
class Experiment:
    """Something else than the best known choice, tried to find out.

    Attributes:
        place: The request that tries it; none where everybody decodes plainly.
        plan: What it tries.
        seconds: How much longer the step takes than the best known choice's.
        forgone: Tokens that choice was expected to bring there.
    """

    place: int | None
    plan: Plan
    seconds: float
    forgone: float

    def applied(self, chosen: list[Plan]) -> list[Plan]:
        if self.place is None:
            return [self.plan] * len(chosen)
        return [*chosen[: self.place], self.plan, *chosen[self.place + 1 :]]

    def lost(self, accepted: Sequence[int], rate: float, surplus: float = 0.0) -> float:
        """Seconds that it has lost.

        Args:
            accepted: Tokens each request has accepted.
            rate: Tokens per second of the best choice.
            surplus: Seconds that its draft took beyond what was expected, as a drafter's first one does.
        """
        gained = sum(accepted) if self.place is None else accepted[self.place]
        return self.seconds + surplus - (gained - self.forgone) / rate


@dataclass(frozen=True, slots=True)
class Decision:
    """A plan for each request.

    Attributes:
        chosen: The best plans.
        values: What any plan is worth beside them.
        experiment: What may be tried in place of one of them, if anything.
    """

    chosen: list[Plan]
    values: Values
    experiment: Experiment | None


@dataclass(slots=True)
class Decider:
    """Chooses, and keeps the books on exploration.

    Attributes:
        exploration: What finding out has cost.
        since_plain: Decisions since the last one to draft nothing.
        usual, recent: Expected speed-up over plain decoding, on average over many steps and over few.
    """

    exploration: Exploration = field(default_factory=Exploration)
    since_plain: int = 0
    usual: float = 1.0
    recent: float = 1.0

    def decide(self, menus: Sequence[Sequence[Plan]], remaining: Sequence[int], prices: StepPrices) -> Decision:
        """The best plans of a step, and what may be tried instead.

        Args:
            menus: Plans of each request; one where nothing is to be chosen.
            remaining: Tokens each may still write.
            prices: What the step's parts cost.
        """
        best = allocate(menus, prices)
        values, experiment = Values(best.chosen, best.rate, prices), None
        if self.exploration.affords(0.0, prices.step(0)):
            experiment = self.shadow(menus, best, prices) or self.trial(menus, remaining, best, values)
        return Decision(best.chosen, values, experiment)

    def note(self, chosen: Sequence[Plan], prices: StepPrices) -> None:
        """These plans it is, in the end."""
        plain = prices.step(0)
        self.watch(rate_of(chosen, prices) * plain / len(chosen), plain)
        self.since_plain = self.since_plain + 1 if any(plan.rows for plan in chosen) else 0

    def renew(self) -> None:
        """Other requests than before: what speculation has been worth says nothing of them."""
        self.usual = self.recent = 1.0

    def watch(self, speed_up: float, plain_step: float) -> None:
        """Allow some more experiments where speculation has become worth less than it was: the text has changed."""
        self.usual += SLOW * (speed_up - self.usual)
        self.recent += QUICK * (speed_up - self.recent)
        if self.recent < FALLEN * self.usual:
            self.usual = self.recent
            self.exploration.grant(GRANT_STEPS * plain_step)

    def shadow(self, menus: Sequence[Sequence[Plan]], best: Allocation, prices: StepPrices) -> Experiment | None:
        """Everybody plain, where that has not been seen for long and everybody may be."""
        if self.since_plain < SHADOW_EVERY or any(len(menu) == 1 for menu in menus):
            return None
        plain, gain = prices.step(0), sum(plan.gain for plan in best.chosen)
        seconds = plain - (len(menus) + gain) / best.rate
        affordable = self.exploration.affords(seconds + gain / best.rate, plain)
        return Experiment(None, NOTHING, seconds, gain) if affordable else None

    def trial(
        self, menus: Sequence[Sequence[Plan]], remaining: Sequence[int], best: Allocation, values: Values
    ) -> Experiment | None:
        """For one request its most hopeful other plan, where that may be better and is affordable."""
        found = self.hopeful(menus, remaining, best, values)
        if found is None:
            return None
        place, plan = found
        taken = best.chosen[place]
        seconds = (values.cost(plan) - values.cost(taken)) / best.rate
        loss = seconds - (plan.gain - taken.gain) / best.rate
        affordable = self.exploration.affords(loss, values.prices.step(0))
        return Experiment(place, plan, seconds, taken.gain) if affordable else None

    @staticmethod
    def hopeful(
        menus: Sequence[Sequence[Plan]], remaining: Sequence[int], best: Allocation, values: Values
    ) -> tuple[int, Plan] | None:
        """A request and a plan that may be better than the one chosen, by urgency, hope, and what trying it loses.

        A drafter call that nobody makes yet is hoped to be shared by all.
        """
        found, most = None, 0.0
        for place, menu in enumerate(menus):
            if remaining[place] < WORTH_EXPLORING:
                continue
            taken = best.chosen[place]
            worth = values.of(taken)
            for plan in menu:
                hope = plan.hoped - values.shared_cost(plan) - worth
                urgency = plan.urgency * hope / max(worth - values.of(plan), LEAST_LOSS)
                if urgency > most and plan is not taken:
                    found, most = (place, plan), urgency
        return found


def within(chosen: list[Plan], room: int) -> list[Plan]:
    """Requests whose drafts bring least for their rows go without until the limit holds; fixed ones keep theirs."""
    chosen = list(chosen)
    while drafting := [i for i, plan in enumerate(chosen) if plan.rows and not plan.fixed]:
        if sum(chosen[i].rows for i in drafting) <= room:
            break
        least = min(drafting, key=lambda i: chosen[i].gain / chosen[i].rows)
        chosen[least] = NOTHING
    return chosen
