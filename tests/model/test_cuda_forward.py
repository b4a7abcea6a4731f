"""On a CUDA device every row of a packed forward is what plain transformers says on the CPU for that row's own path."""

import pytest
import torch
from packed_scene import PROMPTS, assert_rows_are_their_own_path
from packed_sequence import PackedSequence, assert_rows_close, step, take_in_runs, take_interleaved
from tiny_models import ARCHITECTURES, load_packed, load_plain, save_tiny, tiny_config

from foredraft.core.plan_builder import build_plan
from foredraft.model.features import FINAL_NORM
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

MANY = 8  # sequences of few rows each, which attend together


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request, tmp_path_factory):
    folder = save_tiny(tiny_config(request.param), tmp_path_factory.mktemp(request.param))
    return load_packed(folder, device="cuda"), load_plain(folder)


def fresh_pool(packed: PackedModel, slots: int) -> SlotPool:
    pool = SlotPool(slots, packed.device)
    packed.layers = None
    packed.attach(pool, "target")
    return pool


@pytest.mark.parametrize(
    ("take", "expected"), [(take_interleaved, 1), (take_in_runs, 40)], ids=["scattered", "contiguous"]
)
def test_rows_equal_their_own_path(models, take, expected):
    packed, plain = models
    assert packed.device.type == "cuda"
    assert_rows_are_their_own_path(packed, plain, fresh_pool(packed, 160), take, expected)


@pytest.mark.parametrize("take", [take_interleaved, take_in_runs])
def test_many_sequences_attend_together(models, take):
    packed, plain = models
    pool = fresh_pool(packed, 40 * MANY)
    sequences = [PackedSequence(pool, [*PROMPTS[i % 3], i], 40) for i in range(MANY)]
    for sequence in sequences:
        sequence.stage(len(sequence.tokens) - 1)
    take(sequences)
    step(packed, sequences)
    for sequence in sequences:
        sequence.commit([])
        sequence.stage(1)
    take(sequences)
    _, logits = step(packed, sequences)
    for sequence, got in zip(sequences, logits, strict=True):
        assert_rows_close(got.cpu(), sequence.wanted(plain))


def test_hidden_states_are_those_of_the_cpu(tmp_path):
    folder = save_tiny(tiny_config("llama"), tmp_path)
    found = {}
    for device in ("cpu", "cuda"):
        packed = load_packed(folder, device=device)
        sequence = PackedSequence(fresh_pool(packed, 64), PROMPTS[1], 40)
        sequence.stage(len(PROMPTS[1]))
        take_in_runs([sequence])
        plan = build_plan([sequence.rows()], packed.device)
        found[device] = packed.forward_with_features(plan, (0, 2, FINAL_NORM))[1]
    for boundary, state in found["cpu"].items():
        assert_rows_close(found["cuda"][boundary].cpu(), state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_short_formats_stay_near(tmp_path, dtype):
    folder = save_tiny(tiny_config("qwen3"), tmp_path)
    packed = load_packed(folder, dtype, device="cuda")
    sequence = PackedSequence(fresh_pool(packed, 64), PROMPTS[0], 40)
    sequence.stage(len(PROMPTS[0]))
    take_in_runs([sequence])
    _, (got,) = step(packed, [sequence])
    wanted = sequence.wanted(load_plain(folder))
    assert got.dtype is dtype and (got.float().cpu() - wanted).abs().max() < 0.1 * wanted.abs().max()
