"""Requests that attend together see what each of them sees alone."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_plans import row_sets

from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.slots import indices
from foredraft.model import attention, joint_attention
from foredraft.model.attending import Attending
from foredraft.model.attention import attend_packed
from foredraft.model.slot_pool import LayerGroup, LayerShape

CPU = torch.device("cpu")
HEADS, GROUPS, SIZE = 4, 2, 8


def packed(rows):
    """A plan in which every request has slots of its own, and what a layer would bring to it."""
    moved, offset = [], 0
    for own in rows:
        before = indices(own.context_slots, CPU) + offset
        run = isinstance(own.context_slots, slice)
        context = slice(offset, offset + own.context) if run else before
        moved.append((own, [slot + offset for slot in own.slots], context))
        offset += own.context + len(own.tokens)
    plan = build_plan([replace(own, slots=slots, context_slots=context) for own, slots, context in moved], CPU)
    generator = torch.Generator().manual_seed(offset)
    total = plan.tokens.shape[1]
    query = torch.randn(1, HEADS, total, SIZE, generator=generator)
    key, value = (torch.randn(1, GROUPS, total, SIZE, generator=generator) for _ in range(2))
    layers = LayerGroup({0: LayerShape(GROUPS, SIZE, SIZE)}, offset, torch.float32, CPU)
    layers.keys[0][:offset].copy_(torch.randn(offset, GROUPS, SIZE, generator=generator))
    layers.values[0][:offset].copy_(torch.randn(offset, GROUPS, SIZE, generator=generator))
    return plan, (query, key, value), layers


def prompt(count):
    """A request's first rows."""
    slots = list(range(count))
    return Rows(tokens=slots, pending=count, parents=[], slots=slots, context=0, context_slots=slice(0, 0), logits=1)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(row_sets(), min_size=2, max_size=9), window=st.sampled_from([None, 4, 64]))
def test_rows_see_what_they_see_alone(rows, window):
    plan, states, layers = packed(rows)
    attending = Attending(layer=0, scale=0.3, window=window)
    together = attend_packed(*states, attending, plan, layers)
    parts = [
        attention.attend_alone(states[0][:, :, s.row_slice], *layers.read(0, s.keys), s, attending)
        for s in plan.segments
    ]
    torch.testing.assert_close(together, torch.cat(parts, dim=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("counts", "bunches", "alone"), [([1] * 8, 1, 0), ([1] * 4 + [3] * 5 + [40], 2, 1), ([1], 0, 1)]
)
def test_segments_are_bunched_by_size(counts, bunches, alone):
    plan, *_ = packed([prompt(count) for count in counts])
    found, rest = joint_attention.bunches_of(plan, None)
    assert (len(found), len(rest)) == (bunches, alone)
    assert joint_attention.bunches_of(plan, None) is plan.arranged or not bunches
    assert joint_attention.bunches_of(plan, 2)[0] == [] or max(counts) <= 2
