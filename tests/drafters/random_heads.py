"""A tiny random target on either path, and heads for it whose weights are large enough to decide every guess."""

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.core.vocabulary import Vocabulary
from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.heads.layer import LayerSizes
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.heads.shared import Borrowed
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import CpuDevice
from foredraft.model.native_decoder import native_decoder_of
from foredraft.model.native_runtime import installed, runtime_for
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

VOCABULARY, HIDDEN, LAYERS, CONTEXT = 61, 32, 3, 256
THETA, EPS = 321.0, 1e-5
PROMPTS = [[1, 2, 3], [7] * 9, list(range(40)), [5], [9, 9, 4, 11], list(range(20, 33)), [3, 1], [44] * 30]

PATHS = [
    "torch",
    pytest.param("native", marks=pytest.mark.skipif(not installed(), reason="foredraft-native is not installed")),
]


def take_path(model: PackedModel, path: str) -> None:
    """Run `model` in torch or on the native path; its module keeps its weights."""
    if path == "native":
        runtime = runtime_for("auto", torch.float32)
        model.decoder = native_decoder_of(model.module, model.capability.windows, runtime)


def target_module(attention: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    module = LlamaForCausalLM._from_config(config, attn_implementation=attention).float().eval()
    return module.requires_grad_(False)


def random_target(slots: int = 1024, path: str = "torch") -> ModelTarget:
    module = target_module(NAME)
    model = PackedModel(module, capability_of(LlamaForCausalLM, module.config), torch.device("cpu"))
    take_path(model, path)
    vocabulary = Vocabulary(rows=VOCABULARY, size=VOCABULARY)
    return ModelTarget("random", model, CpuDevice(), SlotPool(slots), None, vocabulary)


@torch.no_grad()
def spread(module: nn.Module, seed: int, scale: float = 0.3) -> nn.Module:
    """Weights far from their start, so that every one of them decides the output."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(scale * noise if parameter.ndim > 1 else parameter + scale * noise)
    return module.eval().requires_grad_(False)


def medusa_heads(heads: int = 4, *, draft_vocabulary: int = VOCABULARY, layers: int = 1, **options) -> MedusaHeads:
    config = MedusaConfig(
        hidden_size=HIDDEN,
        vocabulary=VOCABULARY,
        heads=heads,
        layers=layers,
        draft_vocabulary=draft_vocabulary,
        **options,
    )
    module = spread(MedusaHeads(config), seed=1)
    if module.target_ids is not None:
        module.target_ids.copy_(torch.arange(VOCABULARY)[-draft_vocabulary:])
    return module


def dflash_head(
    target: ModelTarget,
    *,
    block: int = 6,
    causal: bool = False,
    mask: int = 60,
    scale: float = 0.3,
    positions: int = CONTEXT,
) -> DFlashHead:
    """Head sizes that together are not the hidden size, norms a head, and a base nobody has by default."""
    sizes = LayerSizes(
        hidden_size=HIDDEN,
        intermediate_size=40,
        heads=4,
        kv_heads=2,
        head_dim=12,
        rms_norm_eps=EPS,
        rope={"rope_type": "default", "rope_theta": THETA},
        max_positions=positions,
        head_norms=True,
    )
    config = DFlashConfig(
        sizes=sizes,
        vocabulary=VOCABULARY,
        target_hidden_size=HIDDEN,
        feature_layers=(1, LAYERS),
        layers=2,
        block_size=block,
        mask_token_id=mask,
        causal=causal,
    )
    module = target.model.module
    borrowed = Borrowed(module.get_input_embeddings(), module.get_output_embeddings())
    return spread(DFlashHead(config, borrowed), seed=2, scale=scale)


@torch.inference_mode()
def hidden_states(module: LlamaForCausalLM, tokens: list[int]) -> dict[int, Tensor]:
    """transformers' own hidden states by boundary, -1 after the last norm, [T, hidden] each; nothing of ours."""
    before_norm = {}
    handle = module.model.norm.register_forward_pre_hook(lambda _, args: before_norm.update({LAYERS: args[0][0]}))
    states = module(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
    handle.remove()
    return {boundary: state[0] for boundary, state in enumerate(states[:-1])} | before_norm | {-1: states[-1][0]}
