"""From turns to figures: acceptance by position, tau, cost of drafting, and speed against plain decoding."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, quantiles

from foredraft.core.outcome import SpeculationStatistics, total
from foredraft.evaluation.turns import PLAIN, Sample, Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Median and quartiles."""

    median: float
    p25: float
    p75: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What is said of one contestant in one group of prompts at one temperature, or in the mean of several groups.

    Positions count from the root: position 1 is the first drafted token. Acceptance comes in both of its meanings.

    Attributes:
        group, temperature, contestant: Of whom; a mean has a group name of its own.
        prompts: How many it was measured on.
        acceptance: Unconditional, by position: accepted there, of the drafts that reach as far.
        conditional_acceptance: By position: accepted there, of the drafts accepted at the position before; it ends
            where nothing was. A draft that does not go on counts as one that was not accepted.
        tau: Mean acceptance length: tokens a target forward, the bonus token included.
        draft_cost: Seconds of drafting a round, of the seconds of a plain step after the prompt; none where plain
            decoding took no such step. A drafter's own reading of the prompt is part of it.
        tokens_per_second: Over whole requests.
        ratio: Tokens a second to plain decoding's on the same prompt in the same round, whole requests.
        decode_ratio: The same after the first step, which reads the prompt; none where one step was all.
        prompts_unlike_plain: Prompts whose text left plain decoding's in some round.
        counts: Sums over all requests, from which the rates are derived; none in a mean.
    """

    group: str
    temperature: float
    contestant: str
    prompts: int
    acceptance: tuple[float, ...]
    conditional_acceptance: tuple[float, ...]
    tau: float
    draft_cost: float | None
    tokens_per_second: Spread
    ratio: Spread
    decode_ratio: Spread | None
    prompts_unlike_plain: int
    counts: SpeculationStatistics | None

    @property
    def first_token_acceptance(self) -> float | None:
        """Acceptance at position 1; none where nothing was drafted."""
        return self.acceptance[0] if self.acceptance else None


def spread(values: Iterable[float]) -> Spread | None:
    """Median and quartiles of `values`, none of none."""
    values = sorted(values)
    if not values:
        return None
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(median=middle, p25=low, p75=high)


def figures_of(turns: Sequence[Turn], contestant: str) -> Figures:
    """Figures of one contestant over the turns of one group at one temperature."""
    samples = [turn.samples[contestant] for turn in turns]
    counts = total(sample.statistics for sample in samples)
    return Figures(
        group=turns[0].group,
        temperature=turns[0].temperature,
        contestant=contestant,
        prompts=len({turn.prompt for turn in turns}),
        acceptance=tuple(counts.acceptance_per_position),
        conditional_acceptance=conditional(counts),
        tau=counts.tau,
        draft_cost=draft_cost(counts, plain_step(turns)),
        tokens_per_second=spread(sample.speed for sample in samples),
        ratio=ratios(turns, contestant, lambda sample: sample.speed),
        decode_ratio=ratios(turns, contestant, lambda sample: sample.decode_speed),
        prompts_unlike_plain=unlike_plain(turns, contestant),
        counts=counts,
    )


def conditional(counts: SpeculationStatistics) -> tuple[float, ...]:
    before = [counts.drafted_at[0], *counts.accepted_at] if counts.drafted_at else []
    pairs = zip(counts.accepted_at, before, strict=False)
    return tuple(accepted / base for accepted, base in pairs if base)


def plain_step(turns: Sequence[Turn]) -> float | None:
    """Seconds of a plain step after the prompt; none where no text had a second token."""
    samples = [turn.samples[PLAIN] for turn in turns]
    steps = sum(sample.statistics.rounds - 1 for sample in samples)
    return sum(sample.seconds - sample.first_seconds for sample in samples) / steps if steps else None


def draft_cost(counts: SpeculationStatistics, step: float | None) -> float | None:
    return counts.draft_seconds / counts.rounds / step if step else None


def ratios(turns: Sequence[Turn], contestant: str, speed: Callable[[Sample], float | None]) -> Spread | None:
    """Speed over plain decoding's, prompt by prompt and round by round, where both have one."""
    pairs = [(speed(turn.samples[contestant]), speed(turn.samples[PLAIN])) for turn in turns]
    return spread(own / plain for own, plain in pairs if own and plain)


def unlike_plain(turns: Sequence[Turn], contestant: str) -> int:
    return len({turn.prompt for turn in turns if turn.samples[contestant].first_difference is not None})


def mean_of(group: str, rows: Sequence[Figures]) -> Figures:
    """The plain mean over groups of every figure, each group counting alike; prompts are added up.

    A group without a figure, such as a position its drafts never reach, is left out of that figure's mean.
    """
    return Figures(
        group=group,
        temperature=rows[0].temperature,
        contestant=rows[0].contestant,
        prompts=sum(row.prompts for row in rows),
        acceptance=means_by_place([row.acceptance for row in rows]),
        conditional_acceptance=means_by_place([row.conditional_acceptance for row in rows]),
        tau=fmean(row.tau for row in rows),
        draft_cost=mean_of_known([row.draft_cost for row in rows]),
        tokens_per_second=mean_spread([row.tokens_per_second for row in rows]),
        ratio=mean_spread([row.ratio for row in rows]),
        decode_ratio=mean_spread([row.decode_ratio for row in rows]),
        prompts_unlike_plain=sum(row.prompts_unlike_plain for row in rows),
        counts=None,
    )


def means_by_place(lists: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(mean_of_known(values) for values in zip_longest(*lists))


def mean_of_known(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def mean_spread(spreads: Sequence[Spread | None]) -> Spread | None:
    known = [spread for spread in spreads if spread]
    return (
        Spread(**{name: fmean(getattr(s, name) for s in known) for name in ("median", "p25", "p75")}) if known else None
    )
