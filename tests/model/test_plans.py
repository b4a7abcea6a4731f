"""Masks, positions and windows of a plan against their definition, token by token."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.step_plan import Segment

CPU = torch.device("cpu")


@st.composite
def row_sets(draw) -> Rows:
    pending, context, nodes = draw(st.integers(1, 5)), draw(st.integers(0, 7)), draw(st.integers(0, 8))
    parents = [draw(st.integers(-1, node - 1)) for node in range(nodes)]
    slots = draw(st.permutations(range(context + pending + nodes))) if draw(st.booleans()) else None
    slots = slots or list(range(context + pending + nodes))
    before = slots[:context]
    return Rows(
        tokens=list(range(pending + nodes)),
        pending=pending,
        parents=parents,
        slots=slots[context:],
        context=context,
        context_slots=slice(0, context) if before == list(range(context)) else torch.tensor(before),
        logits=draw(st.integers(0, pending + nodes)),
    )


def history(rows: Rows, row: int) -> list[int]:
    """Columns of `row`'s own path in reading order: context, pending rows, ancestors, itself."""
    node, path = row - rows.pending, []
    while node >= 0:
        path.append(rows.context + rows.pending + node)
        node = rows.parents[node]
    return [*range(rows.context + min(row + 1, rows.pending)), *path[::-1]]


@settings(max_examples=150, deadline=None)
@given(st.lists(row_sets(), min_size=1, max_size=3), st.sampled_from([None, 1, 2, 3, 5]))
def test_each_row_sees_the_last_of_its_own_history(requests, window):
    plan = build_plan(requests, CPU)
    for rows, segment in zip(requests, plan.segments, strict=True):
        seen = segment.visible(window)
        for row in range(segment.rows):
            own = history(rows, row)
            assert plan.positions[0, segment.start + row] == len(own) - 1
            wanted = set(own if window is None else own[-window:])
            columns = set(range(rows.context + segment.rows))
            assert (columns if seen is None else set(seen[row].nonzero().flatten().tolist())) == wanted


@settings(max_examples=60, deadline=None)
@given(st.lists(row_sets(), min_size=1, max_size=3))
def test_a_plan_names_the_slots_and_rows_it_was_given(requests):
    plan = build_plan(requests, CPU)
    every = torch.arange(1000)
    assert every[plan.write].tolist() == [slot for rows in requests for slot in rows.slots]
    wanted, start = [], 0
    for rows, segment in zip(requests, plan.segments, strict=True):
        assert every[segment.keys].tolist() == every[rows.context_slots].tolist() + rows.slots
        wanted += range(start + len(rows.tokens) - rows.logits, start + len(rows.tokens))
        start += len(rows.tokens)
    assert plan.logit_rows.tolist() == wanted


def sibling_rows() -> Rows:
    """Three committed tokens, the root, then three children of it and a grandchild below the last."""
    return Rows(
        tokens=[9, 1, 2, 3, 4],
        pending=1,
        parents=[-1, -1, -1, 2],
        slots=[3, 4, 5, 6, 7],
        context=3,
        context_slots=slice(0, 3),
        logits=5,
    )


def within_slots(segment: Segment, window: int) -> torch.Tensor:
    """The wrong variant: distance counted in slots, so that siblings push each other's context out of the window."""
    keys = torch.arange(segment.context + segment.rows)
    return keys[segment.context :, None] - keys[None, :] < window


def test_a_window_counts_positions_not_slots(monkeypatch):
    (segment,) = build_plan([sibling_rows()], CPU).segments
    right = segment.visible(3)
    assert right[4].nonzero().flatten().tolist() == [3, 6, 7]  # root, third child, grandchild
    assert right[3].nonzero().flatten().tolist() == [2, 3, 6]
    monkeypatch.setattr(Segment, "within", within_slots)
    assert not torch.equal(segment.visible(3), right)


@pytest.mark.parametrize("window", [None, 2])
def test_bias_repeats_the_mask_and_is_built_once(window):
    (segment,) = build_plan([sibling_rows()], CPU).segments
    bias = segment.bias(window, 2, torch.float32)
    seen = segment.visible(window)
    assert bias.shape == (10, 8)
    assert torch.equal(bias == 0, seen.repeat(2, 1)) and torch.equal(bias == float("-inf"), ~seen.repeat(2, 1))
    assert segment.bias(window, 2, torch.float32) is bias
