"""Tiny random models of many architectures, with weights large enough that attention decides the logits."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig

from foredraft.model.devices import find_device
from foredraft.model.loading import find_checkpoint
from foredraft.model.packed_model import PackedModel, load_packed_model
from foredraft.model.packed_weights import packing_available

VOCABULARY = 96
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]

ARCHITECTURES: dict[str, dict] = {
    "llama": {},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "qwen3": {},
    "qwen3_moe": MOE | {"num_local_experts": 4},
    "mistral": {"sliding_window": 4},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "gemma2": {
        "sliding_window": 4,
        "layer_types": LOCAL,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
        "query_pre_attn_scalar": 16,
    },
    "gemma3_text": {"sliding_window": 4, "layer_types": LOCAL, "query_pre_attn_scalar": 16},
    "phi3": {"sliding_window": 5},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "n_inner": 48},
    "gpt_neox": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "gpt_oss": {"sliding_window": 4, "layer_types": LOCAL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "olmo2": {},
    "olmo3": {"sliding_window": 4, "layer_types": LOCAL},
    "cohere2": {"sliding_window": 4, "layer_types": LOCAL},
    "smollm3": {"use_sliding_window": True, "sliding_window": 4, "no_rope_layers": [1, 0, 1], "layer_types": LOCAL},
    "granite": {"attention_multiplier": 0.3, "embedding_multiplier": 2.0, "logits_scaling": 2.0},
}


def needs_packed(dtype: torch.dtype) -> pytest.MarkDecorator:
    """Skips where oneDNN packs no weights of `dtype`: with AVX2 alone, say, it packs fp32 but not bf16."""
    return pytest.mark.skipif(not packing_available(dtype), reason=f"oneDNN packs no {dtype} weights on this CPU")


def tiny_config(kind: str, **overrides) -> PretrainedConfig:
    return AutoConfig.for_model(kind, **(SIZES | ARCHITECTURES.get(kind, {}) | overrides))


@torch.no_grad()
def save_tiny(config: PretrainedConfig, folder: Path, seed: int = 0) -> str:
    """Write a random model of `config`: matrices with standard deviation 0.25, vectors spread around their start."""
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.25 * noise if parameter.ndim > 1 else parameter + 0.1 * noise)
    module.save_pretrained(folder)
    return str(folder)


def load_packed(
    folder: str, dtype: torch.dtype = torch.float32, native: str | None = "off", device: str = "cpu"
) -> PackedModel:
    """Without the native path unless asked: its module keeps no weights to compare with."""
    return load_packed_model(find_checkpoint(folder), dtype, find_device(device, native))


def load_plain(folder: str) -> torch.nn.Module:
    """The same weights in transformers' own eager attention: nothing of foredraft takes part."""
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return module.eval().requires_grad_(False)


def plain_logits(module: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """Logits after each of `tokens` without a cache, [len(tokens), V]."""
    with torch.inference_mode():
        return module(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
