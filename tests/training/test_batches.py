"""Every step sees the samples its seed says, whatever number of processes shares it."""

from itertools import islice

import pytest
import torch
from tiny_data import random_samples

from foredraft.core.errors import ConfigError
from foredraft.training.batches import Batch, BatchPlan, BatchSource, make_batch
from foredraft.training.samples import Sample

SAMPLES = random_samples(101, longest=40)
LENGTHS = [len(sample) for sample in SAMPLES]
SHAPES = [{"batch_size": 8}, {"batch_tokens": 120}]


class CountedStates:
    """Features that name their sample and row: [first token, row], and final states that count rows."""

    def states(self, samples):
        found = []
        for sample in samples:
            rows = torch.arange(len(sample), dtype=torch.float32)
            first = torch.full((len(sample),), float(sample.tokens[0]))
            found.append((torch.stack([first, rows], dim=-1), rows[:, None]))
        return found


def source(plan: BatchPlan, held_out=(), **options) -> BatchSource:
    return BatchSource(SAMPLES, held_out, plan, CountedStates(), steps=50, **options)


def texts(batch) -> list[tuple[int, ...]]:
    rows = zip(batch.tokens.tolist(), batch.lengths.tolist(), strict=True)
    return [tuple(tokens[:length]) for tokens, length in rows]


@pytest.mark.parametrize("shape", SHAPES)
def test_an_epoch_sees_every_sample_once(shape):
    plan = BatchPlan(LENGTHS, seed=1, **shape)
    for epoch in range(3):
        assert sorted(sum(plan.epoch(epoch), [])) == list(range(len(SAMPLES)))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_order_is_a_function_of_seed_and_epoch(shape):
    plan, again, other = (BatchPlan(LENGTHS, seed=seed, **shape) for seed in (1, 1, 2))
    assert [again.epoch(epoch) for epoch in (2, 0, 1)] == [plan.epoch(epoch) for epoch in (2, 0, 1)]
    assert plan.epoch(0) != plan.epoch(1) and plan.epoch(0) != other.epoch(0)


def test_a_step_holds_batch_size_samples():
    sizes = sorted(map(len, BatchPlan(LENGTHS, seed=1, batch_size=8).epoch(0)))
    assert sizes == [5] + 12 * [8]


def test_a_step_holds_at_most_batch_tokens_with_padding():
    steps = BatchPlan(LENGTHS, seed=1, batch_tokens=120).epoch(0)
    padded = [len(step) * max(LENGTHS[sample] for sample in step) for step in steps]
    assert max(padded) <= 120 and sum(padded) / len(padded) > 80


@pytest.mark.parametrize("shape", SHAPES)
def test_texts_of_a_step_are_of_like_length(shape):
    steps = BatchPlan(LENGTHS, seed=1, **shape).epoch(0)
    padded = sum(len(step) * max(LENGTHS[sample] for sample in step) for step in steps)
    assert padded < 1.15 * sum(LENGTHS)
    firsts = [LENGTHS[step[0]] for step in steps]
    assert firsts != sorted(firsts)  # but the steps are not


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_go_on_from_any_step(shape):
    wanted = list(islice(BatchPlan(LENGTHS, seed=1, **shape).steps_from(0), 45))
    assert wanted == [BatchPlan(LENGTHS, seed=1, **shape).step(step) for step in range(45)]
    for start in (0, 7, 13, 40):
        assert list(islice(BatchPlan(LENGTHS, seed=1, **shape).steps_from(start), 3)) == wanted[start : start + 3]
    plan = BatchPlan(LENGTHS, seed=1, **shape)
    assert wanted[: len(plan)] == plan.epoch(0) and wanted[len(plan)] == plan.epoch(1)[0]


def test_epochs_count_steps():
    plan = BatchPlan(LENGTHS, seed=1, batch_size=8)
    assert len(plan) == 13
    assert [plan.steps_of(epochs) for epochs in (0.01, 1, 1.5, 2)] == [1, 13, 19, 26]
    tokens = BatchPlan(LENGTHS, seed=1, batch_tokens=120)
    assert tokens.steps_of(3) == sum(len(tokens.epoch(epoch)) for epoch in range(3))


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_processes_share_the_samples_of_a_step(world, shape):
    alone = BatchPlan(LENGTHS, seed=1, **shape)
    ranks = [BatchPlan(LENGTHS, seed=1, rank=rank, world=world, **shape) for rank in range(world)]
    for step in range(len(alone)):
        shares = [[sample for part in plan.own(step) for sample in part] for plan in ranks]
        assert sorted(sum(shares, [])) == sorted(alone.step(step))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("accumulation", "sizes"), [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (20, 8 * [1])])
def test_a_step_is_split_into_micro_batches(accumulation, sizes):
    plan = BatchPlan(LENGTHS, seed=1, batch_size=8, accumulation=accumulation)
    step = next(step for step in range(len(plan)) if len(plan.step(step)) == 8)
    parts = plan.own(step)
    assert list(map(len, parts)) == sizes and sum(parts, []) == plan.step(step)


def taught(batch: Batch) -> int:
    """Rows before a written token."""
    return int(batch.written[:, 1:].sum())


@pytest.mark.parametrize(("world", "accumulation"), [(1, 1), (2, 1), (2, 2), (3, 2)])
def test_batches_of_all_processes_say_what_one_would(world, accumulation):
    alone = source(BatchPlan(LENGTHS, seed=4, batch_size=7))
    ranks = [
        source(BatchPlan(LENGTHS, seed=4, batch_size=7, rank=rank, world=world, accumulation=accumulation))
        for rank in range(world)
    ]
    for step in (0, 3, 20):
        (wanted,) = alone.step(step)
        parts = [batch for rank in ranks for batch in rank.step(step)]
        assert sorted(sum(map(texts, parts), [])) == sorted(texts(wanted))
        assert sum(map(taught, parts)) == taught(wanted)


def test_a_process_without_samples_gets_a_batch_that_teaches_nothing():
    plan = BatchPlan(LENGTHS, seed=1, batch_size=2, rank=3, world=4)
    (batch,) = source(plan, SAMPLES[:2]).step(0)
    assert taught(batch) == 0 and len(batch.tokens) == 1
    (held_out,) = source(plan, SAMPLES[:2]).held_out()
    assert taught(held_out) == 0


def test_held_out_samples_are_shared_and_all_seen():
    kept = random_samples(11, seed=9)
    ranks = [source(BatchPlan(LENGTHS, seed=1, batch_size=8, rank=rank, world=2), kept) for rank in range(2)]
    parts = [batch for rank in ranks for batch in rank.held_out()]
    assert sorted(sum(map(texts, parts), [])) == sorted(tuple(sample.tokens) for sample in kept)
    assert max(len(batch.tokens) for batch in parts) == 4
    assert sum(map(taught, parts)) == sum(sum(sample.written[1:]) for sample in kept)
    assert list(source(BatchPlan(LENGTHS, seed=1)).held_out()) == []


def test_a_batch_is_padded_on_the_right():
    samples = [Sample([5, 6, 7], [False, True, True], "a:1"), Sample([8, 9], [True, True], "a:2")]
    batch = make_batch(samples, CountedStates().states(samples), dtype=torch.bfloat16)
    assert batch.tokens.tolist() == [[5, 6, 7], [8, 9, 0]] and batch.tokens.dtype == torch.int64
    assert batch.written.tolist() == [[False, True, True], [True, True, False]]
    assert batch.lengths.tolist() == [3, 2]
    assert batch.features.tolist() == [[[5, 0], [5, 1], [5, 2]], [[8, 0], [8, 1], [0, 0]]]
    assert batch.final.tolist() == [[[0], [1], [2]], [[0], [1], [0]]]
    assert batch.features.dtype == batch.final.dtype == torch.bfloat16
    assert taught(batch) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": []}, "no samples"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"accumulation": 0}, "accumulation is 0"),
        ({"batch_tokens": 10}, "batch_tokens is 10; the longest sample has"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        BatchPlan(**({"lengths": LENGTHS, "seed": 1} | options))
