"""An MTP module with a layer of its target's architecture says what transformers' own modules say of the whole text."""

import copy

import pytest
import torch
from packed_heads import DRAFTS, PackedHead, assert_packed_like, spread
from transformers import AutoConfig, AutoModelForCausalLM

from foredraft.core.errors import ModelError
from foredraft.heads.foreign_layer import foreign_layer, stacked_experts
from foredraft.heads.layer import LayerSizes
from foredraft.heads.mtp import MtpConfig, MtpHead
from foredraft.heads.shared import Borrowed
from foredraft.model.attention import NAME
from foredraft.model.slot_pool import LayerShape

VOCABULARY, HIDDEN, PAIRS = 40, 32, 11
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
HYBRID = LINEAR | {"layer_types": ["linear_attention", "full_attention", "linear_attention"]}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
KINDS = {
    "deepseek_v3": EXPERTS
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 12,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
    },
    "glm4_moe": EXPERTS | {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "qwen3_next": HYBRID | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 16},
    "qwen3_5_text": HYBRID,
}
STORED = {
    "deepseek_v3": {2: LayerShape(4, 16, 12)},  # latent attention: keys are longer than values
    "glm4_moe": {2: LayerShape(2, 8, 8)},
    "qwen3_next": {1: LayerShape(2, 8, 8)},  # the only layer of full attention
    "qwen3_5_text": {1: LayerShape(2, 8, 8)},
}


def target(kind: str, attention: str) -> torch.nn.Module:
    config = AutoConfig.for_model(kind, **(SIZES | KINDS[kind]))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()


def layer_of(kind: str, attention: str) -> tuple[torch.nn.Module, torch.nn.Module]:
    """A decoder layer of `kind` with weights of its own, and the rotary module of its model."""
    decoder, [index] = target(kind, attention).get_decoder(), STORED[kind]
    return spread(copy.deepcopy(decoder.layers[index]), seed=4), decoder.rotary_emb


def mtp_over(kind: str) -> MtpHead:
    """The module with the tensors of `layer_of`, made as the drafter makes it."""
    module, (own, _) = target(kind, NAME), layer_of(kind, "eager")
    tensors = own.state_dict()
    layer = foreign_layer(module.get_decoder(), module.config, dict.fromkeys(range(3)), tensors)
    assert all(tensor.is_meta for tensor in layer.state_dict().values())
    layer.inner.load_state_dict(tensors, assign=True)
    sizes = LayerSizes(hidden_size=HIDDEN, intermediate_size=48, heads=4, kv_heads=2, head_dim=8)
    borrowed = Borrowed(module.get_input_embeddings(), module.get_output_embeddings())
    config = MtpConfig(sizes=sizes, vocabulary=VOCABULARY)
    head = MtpHead(config, borrowed, layer=torch.nn.Identity(), rotary=module.get_decoder().rotary_emb)
    spread(head, seed=6).layer = layer
    return head.eval().requires_grad_(False)


def straight(head: MtpHead, kind: str):
    """The formula with transformers' own layer, attention and mask over the whole text."""
    layer, rotary = layer_of(kind, "eager")
    embed, lm_head = head.borrowed[0].embed, head.borrowed[0].head

    @torch.inference_mode()
    def run(hidden, tokens):
        both = head.enorm(embed(torch.tensor(tokens))), head.hnorm(hidden)
        x = head.eh_proj(torch.cat(both, dim=-1))[None]
        future = torch.full((len(tokens), len(tokens)), float("-inf")).triu(1)[None, None]
        rotation = rotary(x, torch.arange(len(tokens))[None])
        out = layer(x, attention_mask=future, position_embeddings=rotation)[0]
        return out, out, lm_head(head.norm(out))

    return run


def pairs() -> tuple[torch.Tensor, list[int]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (PAIRS,), generator=generator).tolist()
    return torch.randn(PAIRS, HIDDEN, generator=generator), tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_module_is_transformers_own(kind):
    head = mtp_over(kind)
    shapes = head.layer.stored_shapes(head.rotary, HIDDEN)
    assert shapes == STORED[kind]
    packed = PackedHead(head, shapes, scale=0.0)  # the layer brings its own scale
    assert_packed_like(packed, *pairs(), straight(head, kind))
    assert DRAFTS > 1


def test_the_comparison_sees_a_layer_with_other_weights():
    head = mtp_over("deepseek_v3")
    head.layer.inner.self_attn.kv_b_proj.weight.mul_(1.1)
    with pytest.raises(AssertionError):
        packed = PackedHead(head, STORED["deepseek_v3"], scale=0.0)
        assert_packed_like(packed, *pairs(), straight(head, "deepseek_v3"))


def one_by_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts as checkpoints publish them."""
    published = {}
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                gate, up = both.chunk(2)
                stem = name.removesuffix("gate_up_proj") + str(expert)
                published |= {f"{stem}.gate_proj.weight": gate, f"{stem}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            stem = name.removesuffix("down_proj")
            published |= {f"{stem}{expert}.down_proj.weight": own for expert, own in enumerate(tensor)}
        else:
            published[name] = tensor
    return published


@pytest.mark.parametrize("kind", ["deepseek_v3", "glm4_moe", "qwen3_next"])
def test_published_experts_are_stacked(kind):
    tensors = layer_of(kind, "eager")[0].state_dict()
    published = one_by_one(tensors)
    assert "mlp.experts.3.up_proj.weight" in published
    stacked = stacked_experts({f"layer.{name}": tensor for name, tensor in published.items()})
    assert stacked.keys() == {f"layer.{name}" for name in tensors}
    assert all(torch.equal(stacked[f"layer.{name}"], tensor) for name, tensor in tensors.items())


def test_what_is_no_expert_stays():
    tensors = {"mlp.shared_experts.up_proj.weight": torch.ones(2, 2), "mlp.gate.weight": torch.ones(1)}
    assert stacked_experts(tensors) == tensors
    half = {"mlp.experts.0.up_proj.weight": torch.ones(2, 2)}
    assert stacked_experts(half).keys() == half.keys()


@pytest.mark.parametrize("kind", ["deepseek_v3", "qwen3_next"])
def test_other_tensors_are_refused_in_one_line(kind):
    module = target(kind, NAME)
    tensors = layer_of(kind, "eager")[0].state_dict()
    for wrong in ({"bias": torch.ones(1)}, {"input_layernorm.weight": torch.ones(HIDDEN + 1)}):
        with pytest.raises(ModelError, match="of the target: its tensors have other names or shapes") as refusal:
            foreign_layer(module.get_decoder(), module.config, {}, tensors | wrong)
        assert "\n" not in str(refusal.value)
