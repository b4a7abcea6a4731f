"""One step's decision over the whole batch: who drafts, how much, and now and then something else, to find out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from foredraft.engine.cost_curves import below
from foredraft.engine.policy.allocation import (
    LEAST_LINE,
    NOTHING,
    Allocation,
    Plan,
    Values,
    allocate,
    rate_of,
    step_seconds,
)
from foredraft.engine.policy.exploration import Exploration
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.way import Way

SHADOW_EVERY = 32  # decisions after which a plain one keeps the estimate of the speed-up alive
SLOW, QUICK = 0.03, 0.12  # weights of a new observation of the expected speed-up
FALLEN = 0.75  # share of the usual speed-up below which a text is taken to have changed
GRANT_STEPS = 3  # plain steps that may then be spent on experiments
LEAST_LOSS = 0.1  # tokens that an experiment is taken to lose at least
PATIENCE = 4  # experiments in a row that wait for a step without instant drafts
REST, REST_TRIED = 4, 2  # decisions from one that found nothing to try to the next that looks, and from one that did
VAIN = 4  # decisions in a row to draft nothing after which the next one stands for whoever comes, too
WORTH_EXPLORING = 16  # tokens a request must still have to write for an experiment to pay


@dataclass(slots=True)
class StepPrices:
    """Costs of one step.

    Attributes:
        costs: Where they come from.
        requests: How many requests are in the step, each with a pending token.
        context: Their committed positions on average.
        sampled: Whether some of them sample.
        steps, line: What `step` and `about` say, as far as was asked; the latter from one draft node on.
        lines: What steps take in all, by whether a network drafts, likewise.
        calls: What `call` says, likewise.
        aftermath: What a network's call makes the rest of the step longer by.
    """

    costs: LiveCosts
    requests: int
    context: float
    sampled: bool
    steps: list[float] = field(default_factory=list)
    line: list[float] = field(default_factory=list)
    lines: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    calls: dict[tuple[str, int, int], float] = field(default_factory=dict)
    aftermath: float = field(init=False)

    def __post_init__(self) -> None:
        self.aftermath = self.costs.aftermath(self.requests, self.context, self.sampled)

    def step(self, draft_rows: int) -> float:
        """Never less than a step without drafts takes."""
        if draft_rows >= len(self.steps):
            plain = self.costs.step_seconds(self.requests, self.requests, self.context, self.sampled)
            first, *others = self.whole(draft_rows, called=False)
            self.steps = [plain, *[plain + max(seconds - first, 0.0) for seconds in others]]
        return self.steps[draft_rows]

    def about(self, draft_rows: int) -> float:
        """The same where drafts are still to be made: they end where more does not pay, so that steps are more often of
        the cheap sizes on both sides of this one, and take between them what their mixture does."""
        if not draft_rows:
            return self.step(0)
        if draft_rows > len(self.line):
            known = max(2 * draft_rows, LEAST_LINE)
            self.step(known)
            self.line = below(self.steps[1 : known + 1])
        return self.line[draft_rows - 1]

    def whole(self, most: int, *, called: bool) -> list[float]:
        """What steps take in all, by draft nodes, [`most` + 1] at least."""
        line = self.lines[called]
        if most >= len(line):
            last = self.requests + max(2 * most, LEAST_LINE)
            size = (self.requests, last, self.requests, self.context, self.sampled)
            line = self.lines[called] = self.costs.step_line(*size, called=called)
        return line

    def more(self, first: int, last: int, *, called: bool) -> float:
        """What a step takes longer with `last` draft nodes than with `first`; `called` where a network drafts them."""
        line = self.whole(max(first, last), called=called)
        return line[last] - line[first]

    def known(self, draft_rows: int) -> bool:
        """Whether steps of this size have been seen lately."""
        return self.costs.knows(self.requests + draft_rows, self.requests, self.sampled)

    @property
    def learned(self) -> int:
        """Steps that costs have been learned from."""
        return self.costs.steps

    def draft(self, label: str, requests: int) -> float:
        """The call, and what it makes the rest of the step longer by."""
        seconds = self.costs.draft_seconds(label, requests)
        return seconds if label in self.costs.light else self.with_aftermath(seconds)

    def with_aftermath(self, seconds: float) -> float:
        """What a network's call comes to. Where it makes the rest shorter, no call comes to less than half of what it
        takes: of two drafters the slower one stays the dearer."""
        return seconds + max(self.aftermath, -seconds / 2)

    def call(self, way: Way, lengths: tuple[Way, Way], requests: int, depth: int) -> float:
        """As `draft`, of a call by `way` for drafts that end at `depth`; `lengths` as in `RequestPolicy`."""
        key = (way.label, requests, depth)
        if key not in self.calls:
            usual, share = self.costs.calls(way.label, requests), self.costs.share(way, *lengths, requests, depth)
            seconds = share * usual.factor * self.costs.expected_draft(way.label, requests)
            self.calls[key] = self.with_aftermath(seconds)
        return self.calls[key]

    @property
    def token(self) -> float:
        """What a token takes where nobody drafts."""
        return self.step(0) / self.requests

    def row_tokens(self, draft_rows: int) -> float:
        """Tokens that each of so many draft nodes costs."""
        return (self.step(draft_rows) - self.step(0)) / (draft_rows * self.token) if draft_rows else 0.0


@dataclass(frozen=True, slots=True)
class Experiment:
    """Something else than the best known choice, tried to find out.

    Attributes:
        plans: What is tried, by the place of the request that tries it.
        seconds: How much longer the step takes than the best known choice's.
        forgone: Tokens that choice was expected to bring there.
    """

    plans: Mapping[int, Plan]
    seconds: float
    forgone: float

    def applied(self, chosen: Sequence[Plan]) -> list[Plan]:
        return [self.plans.get(place, plan) for place, plan in enumerate(chosen)]

    def lost(self, accepted: Sequence[int], rate: float, surplus: float = 0.0) -> float:
        """Seconds that it has lost.

        Args:
            accepted: Tokens each request has accepted.
            rate: Tokens per second of the best choice.
            surplus: Seconds that its draft took beyond what was expected, as a drafter's first one does.
        """
        gained = sum(accepted[place] for place in self.plans)
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
        vain: Decisions in a row to draft nothing, by how many requests there were and their temperature, by class.
        put_off: Experiments in a row that waited for a step without instant drafts.
        resting: Decisions until the next one that looks for an experiment: to look takes about as long as to decide.
    """

    exploration: Exploration = field(default_factory=Exploration)
    since_plain: int = 0
    usual: float = 1.0
    recent: float = 1.0
    vain: dict[tuple[int, int], int] = field(default_factory=dict)
    put_off: int = 0
    resting: int = 0

    def explores(self, plain_step: float) -> bool:
        """Whether the next decision looks for something to try."""
        self.resting = max(0, self.resting - 1)
        return self.resting == 0 and self.exploration.affords(0.0, plain_step)

    def decide(
        self, menus: Sequence[Sequence[Plan]], remaining: Sequence[int], prices: StepPrices, *, exploring: bool
    ) -> Decision:
        """The best plans of a step, and what may be tried instead.

        Args:
            menus: Plans of each request; one where nothing is to be chosen.
            remaining: Tokens each may still write.
            prices: What the step's parts cost.
            exploring: As `explores` said; the plans are hopeful then.
        """
        best = allocate(menus, prices)
        values, experiment = Values(best.chosen, best.rate, prices), None
        if exploring:
            experiment = self.shadow(menus, best, prices) or self.trial(menus, remaining, best, values)
            self.resting = REST_TRIED if experiment else REST
        return Decision(best.chosen, values, experiment)

    def note(self, chosen: Sequence[Plan], prices: StepPrices) -> None:
        """These plans it is, in the end."""
        plain = prices.step(0)
        self.watch(rate_of(chosen, prices) * plain / len(chosen), plain)
        self.since_plain = self.since_plain + 1 if any(plan.rows for plan in chosen) else 0

    def in_vain(self, crowd: int, drafted: Mapping[int, bool]) -> int:
        """Decisions in a row, with this one, that have drafted for none of several requests, so many by class, whoever
        they were. `drafted` says it of each temperature there is, by class: what is in vain for one may well pay for
        another, so the fewest count. One request changes all at once."""
        if not crowd:
            return 0
        for temperature, drafts in drafted.items():
            self.vain[crowd, temperature] = 0 if drafts else self.vain.get((crowd, temperature), 0) + 1
        return min(self.vain[crowd, temperature] for temperature in drafted)

    def hopeless(self, crowd: int) -> frozenset[int]:
        """Temperatures, by class, of which so many were not drafted for so often that it goes for whoever comes."""
        return frozenset(its for (many, its), count in self.vain.items() if many == crowd and count >= VAIN)

    def renew(self) -> None:
        """Other requests than before: what speculation has been worth says nothing of them."""
        self.usual, self.recent = 1.0, 1.0

    def watch(self, speed_up: float, plain_step: float) -> None:
        """Allow some more experiments where speculation has become worth less than it was: the text has changed."""
        self.usual += SLOW * (speed_up - self.usual)
        self.recent += QUICK * (speed_up - self.recent)
        if self.recent < FALLEN * self.usual:
            self.usual, self.resting = self.recent, 0
            self.exploration.grant(GRANT_STEPS * plain_step)

    def shadow(self, menus: Sequence[Sequence[Plan]], best: Allocation, prices: StepPrices) -> Experiment | None:
        """Everybody plain, where that has not been seen for long and everybody may be."""
        if self.since_plain < SHADOW_EVERY or any(len(menu) == 1 for menu in menus):
            return None
        return self.affordable(dict.fromkeys(range(len(menus)), NOTHING), best, prices)

    def trial(
        self, menus: Sequence[Sequence[Plan]], remaining: Sequence[int], best: Allocation, values: Values
    ) -> Experiment | None:
        """The most hopeful other plan of any request, where that may be better and is affordable: for all who could
        share the drafter's call, or for that one."""
        found = self.hopeful(menus, remaining, best, values)
        if found is None:
            return None
        place, plan = found
        together = alike(menus, remaining, plan.label) if plan.label else {}
        return self.affordable(together | {place: plan}, best, values.prices) or self.affordable(
            {place: plan}, best, values.prices
        )

    def timely(
        self, experiment: Experiment, chosen: Sequence[Plan], values: Values, *, offered: bool
    ) -> Experiment | None:
        """The experiment in place of the plans `chosen` in the end, if its time has come.

        It is cheaper where no instant draft is `offered` to those who try. It does not wait for long, since some
        drafters always have one.
        """
        if not offered:
            self.put_off = 0
            return experiment
        self.put_off += 1
        plans = experiment.plans.items()
        if self.put_off <= PATIENCE or any(values.hope(plan) <= values.of(chosen[i]) for i, plan in plans):
            return None
        best = Allocation(list(chosen), rate_of(chosen, values.prices))
        found = self.affordable(experiment.plans, best, values.prices)
        if found:
            self.put_off = 0
        return found

    def affordable(self, plans: Mapping[int, Plan], best: Allocation, prices: StepPrices) -> Experiment | None:
        """These plans in place of the best ones, if what that is expected to lose may be spent: first readings of
        texts whole, since nobody knows yet whether the drafter will be asked again."""
        forgone = sum(best.chosen[place].gain for place in plans)
        trial = Experiment(plans, 0.0, forgone)
        fresh = trial.applied(best.chosen)
        seconds = step_seconds(fresh, prices) - step_seconds(best.chosen, prices)
        loss = trial.lost([plan.gain for plan in fresh], best.rate) + seconds
        loss += sum(plan.reading - plan.toll for plan in plans.values())
        return replace(trial, seconds=seconds) if self.exploration.affords(loss, prices.step(0)) else None

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
                hope = values.hope(plan) - worth
                urgency = plan.urgency * hope / max(worth - values.of(plan), LEAST_LOSS)
                if urgency > most and plan is not taken:
                    found, most = (place, plan), urgency
        return found


def alike(menus: Sequence[Sequence[Plan]], remaining: Sequence[int], label: str) -> dict[int, Plan]:
    """The plans of one drafter call, by the place of the request, of those that have enough left to write."""
    plans = ((place, plan) for place, menu in enumerate(menus) for plan in menu if plan.label == label)
    return {place: plan for place, plan in plans if remaining[place] >= WORTH_EXPLORING and not plan.fixed}


def within(chosen: list[Plan], room: int) -> list[Plan]:
    """Requests whose drafts bring least for their rows go without until the limit holds; fixed ones keep theirs."""
    chosen = list(chosen)
    while drafting := [i for i, plan in enumerate(chosen) if plan.rows and not plan.fixed]:
        if sum(chosen[i].rows for i in drafting) <= room:
            break
        least = min(drafting, key=lambda i: chosen[i].gain / chosen[i].rows)
        chosen[least] = NOTHING
    return chosen
