"""Speeds and costs from turns made by hand."""

import pytest

from foredraft.core.outcome import SpeculationStatistics, total
from foredraft.evaluation.figures import Spread, figures_of, spread
from foredraft.evaluation.turns import PLAIN, Sample, Turn


def sample(tokens: int, seconds: float, first: float, rounds: int, draft_seconds: float = 0.0) -> Sample:
    return Sample(
        tokens=tokens,
        first_tokens=1,
        seconds=seconds,
        first_seconds=first,
        first_difference=None,
        statistics=SpeculationStatistics(rounds=rounds, committed=tokens, draft_seconds=draft_seconds),
    )


def turn(plain: Sample, drafted: Sample, prompt: int = 0) -> Turn:
    return Turn(
        group="code",
        prompt=prompt,
        prompt_tokens=3,
        temperature=0.0,
        round=0,
        seed=0,
        order=(PLAIN, "new"),
        text=(),
        samples={PLAIN: plain, "new": drafted},
    )


# Plain steps take 1 second after a first one of 2; the drafter spends 0.5 and 0.7 seconds in five rounds each.
TURNS = [
    turn(sample(11, 12.0, 2.0, 11), sample(11, 6.0, 2.0, 5, 0.5)),
    turn(sample(21, 22.0, 2.0, 21), sample(21, 5.5, 2.0, 5, 0.7), prompt=1),
    turn(sample(11, 12.0, 2.0, 11), sample(11, 12.0, 2.0, 5, 0.3), prompt=2),
]


def test_draft_cost_is_a_round_of_drafting_over_a_plain_step():
    assert figures_of(TURNS, "new").draft_cost == pytest.approx(1.5 / 15)


def test_ratios_are_made_prompt_by_prompt():
    row = figures_of(TURNS, "new")
    assert row.ratio == Spread(median=2.0, p25=1.5, p75=3.0)  # 2, 4 and 1
    assert row.decode_ratio.median == pytest.approx(10 / 4)
    assert row.tokens_per_second.median == pytest.approx(11 / 6)
    assert row.tau == 43 / 15


def test_a_text_of_one_token_has_no_plain_step():
    row = figures_of([turn(sample(1, 2.0, 2.0, 1), sample(1, 2.0, 2.0, 1))], "new")
    assert (row.draft_cost, row.decode_ratio, row.ratio.median) == (None, None, 1)


def test_sums_keep_every_place():
    left = SpeculationStatistics(rounds=2, accepted_at=[1, 1], drafted_at=[2, 1], accepted_by={"a": 2})
    right = SpeculationStatistics(rounds=3, accepted_at=[4], drafted_at=[5], accepted_by={"b": 1, "a": 3})
    whole = total([left, right])
    assert (whole.rounds, whole.accepted_at, whole.drafted_at) == (5, [5, 1], [7, 1])
    assert whole.accepted_by == {"a": 5, "b": 1}
    assert left.accepted_at == [1, 1]


def test_spread():
    assert spread([]) is None
    assert spread([3.0]) == Spread(median=3.0, p25=3.0, p75=3.0)
    assert spread([4.0, 1.0, 3.0, 2.0]) == Spread(median=2.5, p25=1.75, p75=3.25)
