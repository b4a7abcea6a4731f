"""Multi-token prediction modules inside a target's checkpoint and alone."""

from dataclasses import replace

import pytest
import torch
from tiny_heads import LAYERS, LLAMA_VALUES, SIZES, TARGET, H, V, found, publish, random_head

from foredraft.checkpoints.head import HeadReading
from foredraft.checkpoints.head_checkpoint import find_head
from foredraft.core.errors import ConfigError, ModelError
from foredraft.heads.layer import LayerSizes
from foredraft.heads.mtp import MtpConfig

MODEL = LLAMA_VALUES | {"model_type": "llama", "num_hidden_layers": LAYERS, "rope_theta": 5e5}
MTP = MtpConfig(sizes=replace(SIZES, rope={"rope_type": "default", "rope_theta": 5e5}), vocabulary=V)
STEM = {"model.embed_tokens.weight": torch.ones(V, H), "model.layers.0.self_attn.q_proj.weight": torch.ones(24, H)}
QWEN = {"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "norm": "norm"}
DEEPSEEK = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}
SPECULATORS = {
    "enorm": "token_layernorm",
    "hnorm": "hidden_layernorm",
    "eh_proj": "input_proj",
    "norm": "final_layernorm",
}


def named(parts, prefix, layer="", tensors=None):
    """A module's tensors under a family's names."""
    tensors = random_head(MTP).tensors if tensors is None else tensors
    out = {}
    for name, tensor in tensors.items():
        part = name.removesuffix(".weight")
        out[prefix + (f"{parts[part]}.weight" if part in parts else layer + name.removeprefix("layer."))] = tensor
    return out


def deepseek(index=LAYERS, tensors=None):
    return named(DEEPSEEK, f"model.layers.{index}.", tensors=tensors)


def qwen(tensors=None):
    return named(QWEN, "mtp.", "layers.0.", tensors)


def inside(folder, **options):
    """The module of the target at `folder`."""
    return find_head(None, method="mtp", target=TARGET, target_path=folder, **options)


def equal(head, tensors):
    return head.tensors.keys() == tensors.keys() and all(
        torch.equal(head.tensors[name], tensors[name]) for name in tensors
    )


def test_deepseeks_names_inside_a_target(tmp_path):
    copies = {f"model.layers.{LAYERS}.{part}.weight": torch.ones(V, H) for part in ("embed_tokens", "shared_head.head")}
    head = inside(publish(tmp_path, MODEL, STEM | deepseek() | copies))
    assert (head.method, head.format) == ("mtp", "MTP tensors as in DeepSeek-V3")
    assert head.config == MTP and head.layer_of is None
    assert equal(head, random_head(MTP).tensors)
    assert any("shared with the target, not read" in note for note in head.notes)
    assert any("the one before the norm" in note for note in head.notes)


def test_qwens_names_inside_a_target(tmp_path):
    head = inside(publish(tmp_path, MODEL, STEM | qwen()))
    assert head.format == "MTP tensors as in Qwen3-Next"
    assert head.config == replace(MTP, feed_normed=True)
    assert equal(head, random_head(MTP).tensors)


def test_mimo_reads_the_hidden_state_first(tmp_path):
    tensors = random_head(MTP).tensors
    embedding, hidden = tensors["eh_proj.weight"].chunk(2, dim=1)
    swapped = tensors | {"eh_proj.weight": torch.cat([hidden, embedding], dim=1)}
    head = inside(publish(tmp_path, MODEL, STEM | named(SPECULATORS, "model.mtp_layers.0.", tensors=swapped)))
    assert equal(head, tensors)
    assert any("halves are swapped" in note for note in head.notes)


def test_speculators_read_the_embedding_first(tmp_path):
    values = {"speculators_model_type": "mtp", "transformer_layer_config": MODEL, "num_nextn_predict_layers": 1}
    head = found(publish(tmp_path, values, named(SPECULATORS, "mtp_layers.0.")), "mtp")
    assert head.format == "speculators"
    assert head.config == replace(MTP, feed_normed=True)
    assert equal(head, random_head(MTP).tensors)


def test_a_file_of_the_module_alone(tmp_path):
    head = found(publish(tmp_path, MODEL, deepseek(0)), "mtp")
    assert head.config == MTP


def test_sizes_left_out_are_the_targets(tmp_path):
    target = publish(tmp_path / "target", MODEL, STEM)
    alone = publish(tmp_path / "alone", {"model_type": "llama"}, deepseek(0))
    assert found(alone, "mtp", target_path=target).config == MTP


def test_its_own_rope_outweighs_the_targets(tmp_path):
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    target = publish(tmp_path / "target", MODEL | rope, STEM)
    alone = publish(tmp_path / "alone", {"rope_theta": 7.0}, deepseek(0))
    assert found(alone, "mtp", target_path=target).config.sizes.rope["rope_theta"] == 7.0


def test_a_module_may_be_named_by_its_targets_folder(tmp_path):
    assert found(publish(tmp_path, MODEL, STEM | qwen()), "mtp").config.feed_normed


def test_the_nearest_of_several_modules_is_read(tmp_path):
    other = {name: tensor + 1 for name, tensor in deepseek(LAYERS + 1).items()}
    head = inside(publish(tmp_path, MODEL, STEM | other | deepseek()))
    assert equal(head, random_head(MTP).tensors)
    assert any("hold 2 modules: the first drafts" in note for note in head.notes)


def test_what_is_fed_back_may_be_asked_for(tmp_path):
    folder = publish(tmp_path, MODEL, STEM | deepseek())
    assert inside(folder, reading=HeadReading(feed_normed=True)).config.feed_normed


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text"])
def test_norms_stored_less_one(tmp_path, kind):
    tensors = random_head(replace(MTP, sizes=replace(MTP.sizes, head_norms=True))).tensors
    head = inside(publish(tmp_path, MODEL | {"model_type": kind}, STEM | qwen(tensors)))
    for name, tensor in tensors.items():
        assert torch.equal(head.tensors[name], tensor + 1 if "norm" in name else tensor), name
    assert any("1 is added" in note for note in head.notes)


def test_a_gated_layer_keeps_its_own_tensors(tmp_path):
    tensors = random_head(MTP).tensors
    tensors |= {
        "layer.self_attn.q_proj.weight": torch.randn(2 * 24, H),
        "layer.mlp.shared_expert_gate.weight": torch.ones(1, H),
    }
    head = inside(publish(tmp_path, MODEL | {"model_type": "qwen3_next"}, STEM | qwen(tensors)))
    assert head.layer_of == "qwen3_next"
    for name, tensor in tensors.items():
        ours = name in ("enorm.weight", "hnorm.weight", "norm.weight")
        assert torch.equal(head.tensors[name], tensor + 1 if ours else tensor), name
    assert any("layer is one of qwen3_next" in note for note in head.notes)


def test_a_latent_attention_layer_keeps_its_own_names(tmp_path):
    stem = {name: tensor for name, tensor in random_head(MTP).tensors.items() if not name.startswith("layer.")}
    layer = {
        "layer.self_attn.q_a_proj.weight": torch.ones(4, H),
        "layer.self_attn.kv_a_proj_with_mqa.weight": torch.ones(6, H),
        "layer.mlp.experts.0.gate_proj.weight": torch.ones(8, H),
        "layer.input_layernorm.weight": torch.ones(H),
    }
    values = {"model_type": "deepseek_v3", "hidden_size": H, "vocab_size": V, "num_attention_heads": 4}
    yarn = {"rope_scaling": {"type": "yarn", "factor": 40}, "rope_theta": 10000}
    head = inside(publish(tmp_path, values | yarn, STEM | deepseek(tensors=stem | layer)))
    assert head.layer_of == "deepseek_v3"
    assert equal(head, stem | layer)
    assert isinstance(head.config.sizes, LayerSizes) and head.config.sizes.hidden_size == H


def test_the_text_part_of_a_config_is_read(tmp_path):
    folder = publish(tmp_path, {"model_type": "outer", "text_config": MODEL}, STEM | qwen())
    assert inside(folder).config.sizes == MTP.sizes


def test_a_target_without_a_module_says_so(tmp_path):
    with pytest.raises(ModelError, match="own checkpoint.*holds no MTP tensors"):
        inside(publish(tmp_path, MODEL, STEM))
    with pytest.raises(ModelError, match="hold no head"):
        found(str(tmp_path), "mtp")


def test_other_methods_need_a_name(tmp_path):
    with pytest.raises(ConfigError, match="eagle3 needs a head"):
        find_head(None, method="eagle3", target=TARGET, target_path=publish(tmp_path, MODEL, STEM))
    with pytest.raises(ConfigError, match="mtp needs a head"):
        find_head(None, method="mtp", target=TARGET)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mtp.norm.weight": None}, r"tensor mtp\.norm\.weight missing"),
        ({"mtp.pre_fc_norm_hidden.weight": torch.ones(H + 1)}, r"hnorm\.weight is \[17\]; its config makes it \[16\]"),
        ({"mtp.layers.0.mlp.up_proj.weight": None}, r"layer\.mlp\.up_proj\.weight missing"),
        ({"mtp.layers.1.mlp.up_proj.weight": torch.ones(1)}, r"more than one layer \(mtp\.layers\.1"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, changes, words):
    tensors = {name: tensor for name, tensor in (qwen() | changes).items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        inside(publish(tmp_path, MODEL, STEM | tensors))
