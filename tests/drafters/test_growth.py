"""When drafts end whose rows are paid for together, and come in blocks."""

from math import inf, log

import pytest

from foredraft.drafters.growth import FREE, End, Growth, least_worth_a_row, worth_a_run, worth_growing

BLOCKS = (0.0, *[0.1] * 4, *[1.0] * 12, *[4.0] * 12)  # what a step costs with 0 to 28 nodes of four chains


def growing(chains: list[End], nodes: int, **beside) -> list[int]:
    return worth_growing(chains, nodes, chains[0].growth, **beside)


def ends(chances: list[float], *, left: int = 6, **costs) -> list[End]:
    growth = Growth(**({"steps": BLOCKS} | costs))
    return [End(growth, log(chance), left) for chance in chances]


def test_a_block_is_filled_once_it_is_begun():
    """What is left of it costs nothing, so the least likely go on, too."""
    assert growing(ends([0.9, 0.9, 0.5, 0.02], left=2), 8) == [0, 1, 2, 3]
    assert growing(ends([0.02] * 4, left=1), 12) == [0, 1, 2, 3]


def test_a_block_is_begun_where_all_levels_of_it_together_are_worth_it():
    for chance, onward, goes in ((0.2, 0.8, True), (0.2, 0.1, False), (0.05, 0.8, False)):
        # three levels of four: 4 * 0.2 * (0.8 + 0.64 + 0.512) = 1.56 beside 0.9
        assert bool(growing(ends([chance] * 4, onward=onward), 4)) is goes
    assert not growing(ends([0.2] * 4, onward=0.8, left=1), 4), "no level may be hoped for that is not left"


def test_the_next_block_is_begun_by_none_or_by_those_that_pay_for_it():
    assert growing(ends([0.9] * 4, onward=0.95), 16) == [0, 1, 2, 3]
    assert growing(ends([0.5] * 4, onward=0.6), 16) == []
    narrow = (*BLOCKS[:17], *[2.5] * 6, *[9.0] * 6)
    assert growing(ends([0.9, 0.01, 0.9, 0.01], left=3, steps=narrow), 16) == [0, 2]


def test_runs_are_paid_by_all_together():
    assert growing(ends([0.5] * 4, run=1.9), 8) == [0, 1, 2, 3]
    assert growing(ends([0.5] * 4, run=2.1), 8) == []
    assert growing(ends([0.5] * 3, run=1.9), 8) == []


def test_a_run_that_is_made_for_a_free_draft_costs_the_others_nothing():
    paying = (Growth(row=0.1, run=5.0), [log(0.5)])
    assert FREE.free and not paying[0].free and not Growth(steps=BLOCKS).free
    assert not worth_a_run([paying]) and worth_a_run([paying, (FREE, [log(0.01)])])
    chains = ends([0.5] * 2, run=1.1, left=2)
    assert growing(chains, 4) == [] and growing(chains, 4, free=[1]) == [0, 1]


def test_rows_of_free_chains_are_there_whatever_the_others_do():
    """They begin the block that the others then fill, or have filled it."""
    assert growing(ends([0.02] * 2, left=1), 4) == [] and growing(ends([0.02] * 2, left=1), 4, free=[1]) == [0, 1]
    assert growing(ends([0.02] * 2, left=1), 14) == [0, 1] and growing(ends([0.02] * 2, left=1), 14, free=[1]) == [0]
    costs = Growth(steps=BLOCKS)
    assert least_worth_a_row([0.02, 0.01], costs) == inf
    assert least_worth_a_row([0.02, 0.01], costs, 5) == 0.01 and least_worth_a_row([0.02, 0.01], costs, 15) == 0.02


def test_chains_may_be_of_unlike_candour_and_length():
    sure, boasting = Growth(steps=BLOCKS), Growth(candour=3.0, steps=BLOCKS)
    both = [End(sure, log(0.6), 2), End(boasting, log(0.6), 2)]
    steps = (*BLOCKS[:5], *[5.0] * 24)
    assert growing([End(Growth(steps=steps), log(0.6), 1)], 4) == []
    assert growing(both, 15) == [0], "the other one would begin the next block"


def test_nodes_that_began_a_block_in_vain_are_not_verified():
    costs = Growth(steps=BLOCKS)
    assert least_worth_a_row([0.9, 0.8, 0.7, 0.6, 0.1, 0.05], costs) == 0.6
    assert least_worth_a_row([0.9, 0.8, 0.7, 0.6, 0.5, 0.45], costs) == 0.45
    assert least_worth_a_row([0.05], costs) == inf


def test_steps_larger_than_known_cost_as_much_a_node_as_on_average():
    assert Growth(steps=BLOCKS).step(56) == pytest.approx(8.0)
