"""The decoder without a module tree is taken only where it says what the modules say, at every position."""

import pytest
import torch
from packed_sequence import PackedSequence, step, take_in_runs
from tiny_models import load_packed, needs_packed, save_tiny, tiny_config

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import build_plan
from foredraft.model import packed_model
from foredraft.model.decoder import Decoder
from foredraft.model.slot_pool import SlotPool

pytestmark = needs_packed(torch.float32)

SCALED_QUERIES = {
    "rope_type": "default",
    "rope_theta": 1e4,
    "llama_4_scaling_beta": 0.5,
    "original_max_position_embeddings": 32,
}


@pytest.mark.parametrize(
    ("kind", "options", "taken"),
    [
        ("llama", {}, True),
        ("qwen2", {}, True),
        ("qwen3", {}, True),
        ("mistral", {}, True),
        ("gemma2", {}, False),  # more norms, scaled embeddings
        ("granite", {}, False),  # same parts, but multipliers between them
        ("smollm3", {}, False),  # same parts, but a layer without rotation
        ("gpt2", {}, False),
    ],
)
def test_taken_by_what_the_model_computes(kind, options, taken, tmp_path):
    model = load_packed(save_tiny(tiny_config(kind, **options), tmp_path))
    assert isinstance(model.decoder, Decoder) == taken
    assert ("without their module tree" in model.path) == taken


def test_a_difference_far_into_the_context_is_found(tmp_path, monkeypatch):
    folder = save_tiny(tiny_config("ministral3", rope_parameters=SCALED_QUERIES), tmp_path)
    assert load_packed(folder).decoder is None
    monkeypatch.setattr(packed_model, "LAST_POSITION", 16)
    assert load_packed(folder).decoder is not None  # the queries are scaled from position 32 on


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_packed(torch.bfloat16))])
@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_same_bits_as_the_modules(kind, dtype, tmp_path):
    model = load_packed(save_tiny(tiny_config(kind), tmp_path), dtype)
    pool = SlotPool(64)
    model.attach(pool, "target")
    sequences = [PackedSequence(pool, [5, 9, 17, 33, 2, 8, 41], 20), PackedSequence(pool, [3, 4, 5], 20)]
    [sequence.stage(len(sequence.tokens) - 1) for sequence in sequences]
    take_in_runs(sequences)
    step(model, sequences)
    [sequence.commit([]) for sequence in sequences]
    sequences[0].stage(1, DraftTree(tokens=[1, 2, 3], parents=[-1, -1, 0], drafters=["test"] * 3))
    sequences[1].stage(1)
    take_in_runs(sequences)
    plan = build_plan([sequences[0].rows(), sequences[1].rows(logits=0)], model.device)
    without_modules = model.forward(plan)
    decoder, model.decoder = model.decoder, None
    assert decoder is not None and without_modules.shape[0] == 4
    assert torch.equal(without_modules, model.forward(plan))
