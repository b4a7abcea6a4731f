"""What a step has taught, kept until somebody decides: what was read lately is read fastest, so that taking in several
lessons at once takes hardly longer than one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.policy.allocation import Values
from foredraft.engine.policy.decision import Experiment, StepPrices
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.seat import Seat
from foredraft.engine.running import Work


class Call(NamedTuple):
    """A drafter's call that was not the first for any of its requests.

    Attributes:
        label: The way to draft.
        orders: Whom it drafted for, each with the place of that way.
        seconds: What it took.
        depth: Of the deepest draft.
    """

    label: str
    orders: Sequence[tuple[RequestPolicy, int]]
    seconds: float
    depth: int = 0


@dataclass(slots=True)
class Lesson:
    """One step.

    Attributes:
        seats: Its requests that were drafted for and leave a choice.
        free: Statistics of all requests in it that leave one, those whose prompts are still read among them.
        requests, rows: Its size.
        context, sampled: Committed positions a request, and whether some of them sample.
        draft, rest: Seconds of drafting and of everything else.
        own: Those of `draft` that the policy itself took; none where that, and what the step took, says nothing of
            others.
        steady: Whether no prompt was read.
        teaches: Whether costs and stated chances are learned from it.
        calls: Of drafters.
        surplus: Seconds that first drafts took beyond what was expected.
        values, prices: By which plans were compared and what the step cost; none where nobody left a choice.
        experiment, accepted: What was tried, and tokens that each deciding request accepted then.
        called: Whether some drafter's network was run in it.
        by_routine, stands_for: Whether it was a step by routine, and how many of these are learned of by it.
    """

    seats: Sequence[Seat]
    free: Sequence[SpeculationStatistics]
    requests: int
    rows: int
    context: float
    sampled: bool
    draft: float
    rest: float
    own: float | None
    steady: bool
    teaches: bool
    calls: Sequence[Call]
    surplus: float
    values: Values | None
    prices: StepPrices | None
    experiment: Experiment | None
    accepted: Sequence[int]
    called: bool = False
    by_routine: bool = False
    stands_for: int = 1

    @property
    def row_price(self) -> float:
        """Tokens that each draft node cost."""
        return self.prices.row_tokens(self.rows - self.requests) if self.steady and self.prices else 0.0

    @property
    def counted(self) -> bool:
        """Whether what asking for all was worth in it is counted otherwise, or not known."""
        return self.by_routine or not self.steady

    @property
    def plain_token(self) -> float:
        """Seconds that each token would have taken where nobody drafts; prompts are read alike with and without."""
        return self.values.token if self.steady and self.values else 0.0


def prices_of(batch: Sequence[Work], costs: LiveCosts, before: StepPrices | None) -> StepPrices:
    """What a step of so many requests costs in which no prompt is read, as most are that a decision stands for; as
    `before`, where there was one of its size."""
    if before is not None and before.requests == len(batch):
        return before
    return StepPrices(
        costs,
        requests=len(batch),
        context=mean_context(batch),
        sampled=sampling(batch),
    )


def mean_context(batch: Sequence[Work]) -> float:
    """Committed positions a request."""
    return sum([len(work.running.table) for work in batch]) / len(batch)


def sampling(batch: Sequence[Work]) -> bool:
    return any([not work.running.sampler.plain_greedy for work in batch])
