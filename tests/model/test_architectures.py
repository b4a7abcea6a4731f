"""Every row of a packed forward is what plain transformers says for that row's own path."""

import pytest
import torch
from packed_scene import PROMPTS, assert_rows_are_their_own_path
from packed_sequence import PackedSequence, assert_rows_close, step, take_in_runs, take_interleaved
from tiny_models import ARCHITECTURES, VOCABULARY, load_packed, load_plain, save_tiny, tiny_config

from foredraft.core.plan_builder import build_plan
from foredraft.core.step_plan import StepPlan
from foredraft.model.devices import packing_available
from foredraft.model.slot_pool import SlotPool


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request, tmp_path_factory):
    folder = save_tiny(tiny_config(request.param), tmp_path_factory.mktemp(request.param))
    return load_packed(folder), load_plain(folder)


def test_packed_path_is_taken(models):
    packed, _ = models
    if packing_available(torch.float32):
        assert packed.path.startswith("packed path"), packed.path


@pytest.mark.parametrize(
    ("take", "expected"), [(take_interleaved, 1), (take_in_runs, 40)], ids=["scattered", "contiguous"]
)
def test_rows_equal_their_own_path(models, take, expected):
    packed, plain = models
    pool = SlotPool(160)
    packed.layers = None
    packed.attach(pool, "target")

    def look(plan: StepPlan) -> None:
        assert all(isinstance(segment.keys, slice) == (take is take_in_runs) for segment in plan.segments)

    assert_rows_are_their_own_path(packed, plain, pool, take, expected, look)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "opt"])
def test_chunks_equal_one_shot(kind, tmp_path):
    packed = load_packed(save_tiny(tiny_config(kind), tmp_path))
    pool = SlotPool(64)
    packed.attach(pool, "target")
    whole, parts = PackedSequence(pool, PROMPTS[1], 16), PackedSequence(pool, PROMPTS[1], 16)
    whole.stage(13)
    take_in_runs([whole])
    _, (at_once,) = step(packed, [whole])
    rows = []
    for chunk in (1, 5, 2, 5):
        parts.stage(chunk)
        take_in_runs([parts])
        rows += step(packed, [parts])[1]
        parts.commit([])
    assert_rows_close(torch.cat(rows), at_once)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_only_wanted_rows_give_logits(kind, tmp_path):
    packed = load_packed(save_tiny(tiny_config(kind), tmp_path))
    pool = SlotPool(64)
    packed.attach(pool, "target")
    sequences = [PackedSequence(pool, prompt, 16) for prompt in PROMPTS]
    [sequence.stage(3) for sequence in sequences]
    take_in_runs(sequences)
    _, everything = step(packed, sequences)
    for wanted in [(1, 0, 2), (0, 0, 1), (0, 0, 0)]:
        plan = build_plan([s.rows(logits=count) for s, count in zip(sequences, wanted, strict=True)], packed.device)
        got = packed.forward(plan)
        assert got.shape == (sum(wanted), VOCABULARY)
        expected = torch.cat([rows[3 - count :] for rows, count in zip(everything, wanted, strict=True)])
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
