"""MTP modules found in a target's own checkpoint, whatever its layers are."""

import pytest
import torch
from random_heads import spread
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.errors import ConfigError, ModelError
from foredraft.core.speculation_config import OFF
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.mtp import make_mtp
from foredraft.heads.foreign_layer import ForeignLayer
from foredraft.heads.layer import HeadLayer
from foredraft.heads.native_feature_head import NativeFeatureHead
from foredraft.model.devices import CpuDevice
from foredraft.model.loading import find_checkpoint
from foredraft.model.native_runtime import installed
from foredraft.model.packed_model import load_packed_model
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

VOCABULARY, HIDDEN, LAYERS = 61, 32, 2
PROMPTS = [[1, 2, 3], [7] * 9, list(range(40)), [5]]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 2,
    "topk_group": 1,
}
TARGETS = {
    "llama": ({}, HeadLayer),
    "deepseek_v3": (EXPERTS | LATENT, ForeignLayer),
    "glm4_moe": (EXPERTS | {"n_shared_experts": 1}, ForeignLayer),
}


@torch.no_grad()
def publish(kind: str, folder) -> str:
    """A random target and, as a layer after its last one, a module that repeats the target's last layer."""
    config = AutoConfig.for_model(kind, **(SIZES | TARGETS[kind][0]))
    module = spread(AutoModelForCausalLM.from_config(config, dtype=torch.float32), seed=0, scale=0.2)
    module.save_pretrained(folder)
    file, eye = folder / "model.safetensors", torch.eye(HIDDEN)
    tensors = load_file(file)
    stem, last = f"model.layers.{LAYERS}.", f"model.layers.{LAYERS - 1}."
    tensors |= {stem + name.removeprefix(last): t.clone() for name, t in tensors.items() if name.startswith(last)}
    tensors |= {f"{stem}{name}.weight": torch.ones(HIDDEN) for name in ("enorm", "hnorm", "shared_head.norm")}
    tensors[f"{stem}eh_proj.weight"] = torch.cat([eye, eye], dim=1)
    save_file(tensors, file, metadata={"format": "pt"})
    return str(folder)


def loaded(folder: str, native: str = "off") -> ModelTarget:
    place = CpuDevice(native)
    model = load_packed_model(find_checkpoint(folder), torch.float32, place)
    vocabulary = Vocabulary(rows=VOCABULARY, size=VOCABULARY)
    return ModelTarget("target", model, place, SlotPool(1024), None, vocabulary, folder)


@pytest.fixture(scope="module", params=[*((kind, "off") for kind in TARGETS), ("llama", "auto")], ids="-".join)
def target(request, tmp_path_factory):
    kind, native = request.param
    own = NativeFeatureHead if native == "auto" and installed() else TARGETS[kind][1]
    return own, loaded(publish(kind, tmp_path_factory.mktemp(kind)), native)


@pytest.mark.parametrize("shape", [{}, {"tree_size": 10}, {"speculative_token_tree": "eagle_25", "tree_size": 30}])
def test_the_module_of_a_target_drafts_for_it(target, shape):
    own, target = target
    engine = Engine(target, max_batch=3, speculation=OFF)
    config = SpeculationConfig(method="mtp", num_speculative_tokens=3, **shape)
    for sampling in (SamplingParams(max_new_tokens=16), SamplingParams(max_new_tokens=16, temperature=1.0, seed=3)):
        plain = [output.token_ids for output in engine.generate(PROMPTS, sampling)]
        outputs = engine.generate(PROMPTS, sampling, config)
        assert [output.token_ids for output in outputs] == plain
        assert sum(output.statistics.drafted for output in outputs) > 50
        target.pool.check_integrity([])
    drafter = engine.drafter_for(config)
    assert own in (type(drafter.head), type(getattr(drafter.head, "layer", None))) and not drafter.filled


def test_keys_and_values_may_differ_in_size(tmp_path):
    drafter = make_mtp(SpeculationConfig(method="mtp"), loaded(publish("deepseek_v3", tmp_path)))
    [shape] = drafter.layers.shapes.values()
    assert (shape.heads, shape.key_size, shape.value_size) == (4, 16, 12)


def test_a_layer_that_is_not_the_targets_is_refused(tmp_path):
    folder = publish("deepseek_v3", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors[f"model.layers.{LAYERS}.self_attn.sinks"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="no DeepseekV3DecoderLayer of the target") as refusal:
        make_mtp(SpeculationConfig(method="mtp"), loaded(folder))
    assert "\n" not in str(refusal.value)


def test_a_target_without_a_module_says_so(tmp_path):
    config = AutoConfig.for_model("llama", **SIZES)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    target = loaded(str(tmp_path))
    with pytest.raises((ModelError, ConfigError), match="no MTP tensors") as refusal:
        make_mtp(SpeculationConfig(method="mtp"), target)
    assert "\n" not in str(refusal.value)
