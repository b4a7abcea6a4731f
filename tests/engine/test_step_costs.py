"""The table of costs, read at its entries, between them and beyond."""

import json

import pytest

from foredraft import SpeculationConfig
from foredraft.engine.cost_curves import below, rising
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts, option_label


def table(*forwards: tuple, **drafts: dict[int, float]) -> StepCosts:
    """Costs from (rows, requests, context, seconds) and, by label, seconds by requests."""
    costs = [ForwardCost(rows=r, requests=n, context=c, seconds=s) for r, n, c, s in forwards]
    calls = {label: tuple(DraftCost(requests=n, seconds=s) for n, s in own.items()) for label, own in drafts.items()}
    return StepCosts(forwards=tuple(costs), drafts=calls)


ONE = table((1, 1, 64, 1.0), (8, 1, 64, 2.4), (16, 1, 64, 4.0), (1, 1, 1024, 2.0), (16, 1, 1024, 7.0))


@pytest.mark.parametrize(
    ("rows", "context", "seconds"),
    [
        (1, 64, 1.0),
        (16, 64, 4.0),
        (2, 64, 1.2),
        (12, 64, 3.2),
        (20, 64, 4.8),  # as from 8 to 16
        (1, 544, 1.5),
        (1, 1984, 3.0),
        (16, 1024, 7.0),
        (16, 1984, 10.0),
        (1, 0, 1.0),  # no less than at the shortest context that was measured
    ],
)
def test_a_forward_is_read_between_and_beyond_what_was_measured(rows, context, seconds):
    assert ONE.forward_seconds(rows, 1, context) == pytest.approx(seconds)
    assert ONE.forward_seconds(rows, 1, context) == pytest.approx(seconds)  # also from the cache


def test_requests_lie_between_those_measured_and_go_on_past_them():
    rows = [(1, 1, 64, 1.0), (8, 1, 64, 2.0), (4, 4, 64, 2.0), (8, 4, 64, 4.0), (4, 4, 164, 3.0)]
    costs = table(*rows)
    assert costs.forward_seconds(8, 4, 64) == 4.0
    assert costs.forward_seconds(8, 2, 64) == pytest.approx(2.0 + 2.0 / 3)
    more = costs.forward_seconds(8, 7, 64)
    assert more > 4.0 and costs.forward_seconds(8, 10, 64) - 4.0 == pytest.approx(2 * (more - 4.0))
    attention = costs.forward_seconds(4, 4, 164) - costs.forward_seconds(4, 4, 64)
    assert costs.forward_seconds(4, 8, 164) - costs.forward_seconds(4, 8, 64) == pytest.approx(2 * attention)


def test_a_context_nobody_measured_for_so_many_requests_costs_in_proportion():
    costs = table((1, 1, 64, 1.0), (1, 1, 164, 1.5), (4, 4, 64, 2.0))
    assert costs.forward_seconds(4, 4, 164) == pytest.approx(2.0 + 4 * 0.5)


def test_noise_is_smoothed_so_that_more_never_costs_less():
    noisy = table(
        *[(rows, 1, 64, seconds) for rows, seconds in zip((1, 2, 4, 8, 16), (1.0, 3.0, 2.0, 5.0, 4.0), strict=True)],
        *[(rows, 1, 1024, seconds) for rows, seconds in zip((1, 2, 4, 8, 16), (2.0, 2.5, 5.0, 4.9, 3.9), strict=True)],
        *[(rows, 4, 64, seconds) for rows, seconds in zip((4, 8, 16), (6.0, 5.0, 5.5), strict=True)],
    )
    assert [noisy.forward_seconds(rows, 1, 64) for rows in (1, 2, 4, 8, 16)] == [1.0, 2.5, 2.5, 4.5, 4.5]
    for requests in (1, 2, 4, 9):
        for context in (0, 64, 500, 1024, 30000):
            times = [noisy.forward_seconds(rows, requests, context) for rows in range(1, 80)]
            assert times == sorted(times)
    for rows in range(1, 40):
        times = [noisy.forward_seconds(rows, 1, context) for context in (0, 64, 65, 1024, 5000)]
        assert times == sorted(times)


@pytest.mark.parametrize("requests", [1, 2, 4, 9])
@pytest.mark.parametrize("context", [0, 64, 100, 500.5])
def test_a_line_of_forwards_says_what_each_of_them_does(requests, context):
    sizes = [(1, 1, 64, 1.0), (8, 1, 64, 2.0), (8, 1, 164, 2.5), (4, 4, 32, 2.0), (8, 4, 32, 4.0), (4, 4, 164, 3.0)]
    for first, last in ((requests, requests), (requests, 40), (3, 100), (510, 514)):
        alone = [table(*sizes).forward_seconds(rows, requests, context) for rows in range(first, last + 1)]
        assert table(*sizes).forward_line(first, last, requests, context) == pytest.approx(alone, rel=1e-12)


def test_rising_is_the_closest_rising_sequence():
    assert rising([3.0, 1.0, 2.0]) == [2.0, 2.0, 2.0]
    assert rising([1.0, 4.0, 2.0, 3.0, 9.0]) == [1.0, 3.0, 3.0, 3.0, 9.0]
    assert rising([]) == []


def test_one_measurement_answers_everything():
    assert table((4, 1, 0, 0.5)).forward_seconds(64, 3, 900) == 0.5


def test_drafts_by_requests():
    costs = table((1, 1, 0, 1.0), (16, 16, 0, 2.0), ngram={1: 0.1, 4: 0.4}, medusa={1: 0.3})
    assert costs.draft_seconds("ngram", 1) == 0.1
    assert costs.draft_seconds("ngram", 2) == pytest.approx(0.2)
    assert costs.draft_seconds("ngram", 8) == pytest.approx(0.8)
    assert costs.draft_seconds("medusa", 1) == 0.3
    assert 0.3 < costs.draft_seconds("medusa", 16) < 16 * 0.3  # measured alone: something between
    assert costs.draft_seconds("eagle3", 1) is None
    assert costs.draft_seconds("plain", 16) == 0.0


def test_a_record_survives_json():
    costs = table((1, 1, 64, 0.125), (8, 4, 64, 1 / 3), ngram={1: 1e-5})
    read = StepCosts.from_record(json.loads(json.dumps(costs.record())))
    assert read == costs and read.forward_seconds(3, 2, 99) == costs.forward_seconds(3, 2, 99)


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"forwards": [], "drafts": {}},
        {"forwards": [{"rows": 1}], "drafts": {}},
        {"forwards": [{"rows": 1, "requests": 1, "context": 0, "seconds": float("nan")}], "drafts": {}},
        {"forwards": [{"rows": 1, "requests": 1, "context": 0, "seconds": -1.0}], "drafts": {}},
        {"forwards": [{"rows": "1", "requests": 1, "context": 0, "seconds": 1.0}], "drafts": {}},
        {"forwards": [{"rows": 1, "requests": 1, "context": 0, "seconds": "1.0"}], "drafts": {}},
        {"forwards": [{"rows": 1, "requests": 1, "context": 0, "seconds": 1.0}], "drafts": [1]},
        {"forwards": [{"rows": 1, "requests": 1, "context": 0, "seconds": 1.0}], "drafts": {"a": [{"requests": 1}]}},
    ],
)
def test_a_foreign_record_is_refused(record):
    with pytest.raises(ValueError, match="record of step costs"):
        StepCosts.from_record(record)


LABELS = {
    "plain": {"method": "none"},
    "suffix 12": {"method": "suffix", "num_speculative_tokens": 12},
    "draft_model tiny-draft 4": {"method": "draft_model", "model": "tiny-draft", "num_speculative_tokens": 4},
    "eagle3 6 tree 24x4": {"method": "eagle3", "num_speculative_tokens": 6, "tree_size": 24, "tree_width": 4},
    "eagle3 6 tree 24x3": {"method": "eagle3", "num_speculative_tokens": 6, "tree_size": 24},
    "medusa 4 tree mc_sim_7b_63": {
        "method": "medusa",
        "num_speculative_tokens": 4,
        "speculative_token_tree": "mc_sim_7b_63",
    },
    "medusa 4 tree mc_sim_7b_63 first 20": {
        "method": "medusa",
        "num_speculative_tokens": 4,
        "speculative_token_tree": "mc_sim_7b_63",
        "tree_size": 20,
    },
    "cascade ngram,medusa 3": {"method": "cascade", "drafters": "ngram,medusa", "num_speculative_tokens": 3},
    "lookahead 4 window 9": {"method": "lookahead", "num_speculative_tokens": 4, "lookahead_window": 9},
    "suffix 5 factor 2.5": {"method": "suffix", "suffix_decoding_max_spec_factor": 2.5},
    "medusa 5": {"method": "medusa", "suffix_decoding_max_spec_factor": 2.5},
    "merged medusa, suffix 5 factor 2.5": {
        "method": "merged",
        "drafters": "medusa, suffix",
        "suffix_decoding_max_spec_factor": 2.5,
    },
}


@pytest.mark.parametrize("label", LABELS)
def test_a_label_says_what_decides_the_cost_of_a_draft(label):
    config = SpeculationConfig(**LABELS[label])
    assert option_label(config) == label
    assert option_label(SpeculationConfig(**LABELS[label], prediction="a text")) == label


def test_given_trees_are_told_apart():
    trees = ("[[0], [1]]", "[[0], [0, 0]]")
    labels = {option_label(SpeculationConfig(method="medusa", speculative_token_tree=tree)) for tree in trees}
    assert len(labels) == 2


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([3.0], [3.0]),
        ([1.0, 4.0], [1.0, 4.0]),
        ([1.0, 1.0, 4.0, 4.0, 9.0], [1.0, 1.0, 2.5, 4.0, 9.0]),  # the corners are before the rises
        ([2.0, 1.0, 2.0], [2.0, 1.0, 2.0]),
        ([0.0, 3.0, 2.0, 4.0], [0.0, 1.0, 2.0, 4.0]),
        ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_a_convex_line_below_what_rises_by_blocks(values, line):
    assert below(values) == pytest.approx(line)
