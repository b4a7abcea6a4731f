"""EAGLE heads as they are published, and every way their files may be misread."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from tiny_heads import (
    DRAFT,
    EAGLE3,
    IDS,
    LLAMA_VALUES,
    SIZES,
    TARGET,
    H,
    V,
    eagle3_tensors,
    found,
    publish,
    random_head,
)

from foredraft.checkpoints.head import HeadReading
from foredraft.core.errors import ConfigError, ModelError
from foredraft.heads.eagle import EagleConfig
from foredraft.heads.shared import draft_ids
from foredraft.model.features import FINAL_NORM

PUBLISHED = LLAMA_VALUES | {"architectures": ["LlamaForCausalLM"], "draft_vocab_size": DRAFT}


@pytest.fixture
def eagle3(tmp_path):
    """Publishes an EAGLE-3 head in EAGLE's own layout."""

    def make(config=(), tensors=None, file="pytorch_model.bin"):
        return publish(tmp_path / "head", PUBLISHED | dict(config), tensors or eagle3_tensors(), file)

    return make


def speculators(tmp_path, config=(), layer=(), tensors=None):
    values = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": DRAFT,
        "transformer_layer_config": {"model_type": "llama"} | LLAMA_VALUES | dict(layer),
    }
    tensors = random_head(EAGLE3).tensors if tensors is None else tensors
    return publish(tmp_path / "head", values | dict(config), tensors)


def told(head, words):
    return any(words in note for note in head.notes)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
def test_eagle3_in_eagles_layout(eagle3, file):
    head = found(eagle3(file=file), "eagle3")
    assert (head.method, head.format) == ("eagle3", "EAGLE layout")
    assert head.config == EAGLE3
    assert torch.equal(head.tensors["layers.0.hidden_norm.weight"], eagle3_tensors()["midlayer.hidden_norm.weight"])
    assert told(head, "fc has 3 x 16 inputs")


def test_sharded_files(tmp_path):
    folder = publish(tmp_path, PUBLISHED, eagle3_tensors())
    (tmp_path / "model.safetensors").unlink()
    files = {name: f"part-{index % 2}.safetensors" for index, name in enumerate(eagle3_tensors())}
    for file in set(files.values()):
        save_file({name: t for name, t in eagle3_tensors().items() if files[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert found(folder).config == EAGLE3
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(ModelError, match=r"names part-1\.safetensors, which is not there"):
        found(folder)


# Pitfall 1: rope theta.


def test_a_head_without_rope_theta_turns_at_10000(eagle3):
    head = found(eagle3())
    assert head.config.sizes.rope == {"rope_type": "default", "rope_theta": 10000.0}
    assert told(head, "no rope_theta in the config: 10000")


@pytest.mark.parametrize(
    "config",
    [
        {"rope_theta": 5e5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_theta": 1.0, "rope_parameters": {"rope_theta": 5e5}},
    ],
)
def test_both_spellings_of_rope_theta(eagle3, config):
    assert found(eagle3(config)).config.sizes.rope["rope_theta"] == 5e5


def test_rope_scaling_of_older_files(eagle3):
    scaling = {"type": "linear", "factor": 4.0}
    assert found(eagle3({"rope_scaling": scaling, "rope_theta": 1e6})).config.sizes.rope == {
        "rope_type": "linear",
        "rope_theta": 1e6,
        "factor": 4.0,
    }


def test_rope_theta_may_be_asked_for(eagle3):
    assert found(eagle3(), reading=HeadReading(rope_theta=1e6)).config.sizes.rope["rope_theta"] == 1e6


# Pitfall 2: layer ids.


@pytest.mark.parametrize(
    ("ids", "layers", "words"),
    [
        (None, (2, 4, 5), "boundaries 2, 4, 5"),
        ([2, 4, 5], (2, 4, 5), "read as boundaries"),
        ([1, 3, 4], (2, 4, 5), "read as layer outputs: +1"),
        ([0, 3, 6], (1, 4, 7), "read as layer outputs: +1"),
        ([5, 6, 8], (5, 6, 8), "read as boundaries"),
    ],
)
def test_layer_ids_of_the_eagle_layout(eagle3, ids, layers, words):
    head = found(eagle3({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}))
    assert head.config.feature_layers == layers
    assert told(head, words)


def test_layer_ids_may_be_overridden(eagle3):
    folder = eagle3({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}})
    assert found(folder, reading=HeadReading(layer_ids="outputs")).config.feature_layers == (3, 5, 6)
    assert found(folder, reading=HeadReading(feature_layers=(1, 2, 8))).config.feature_layers == (1, 2, 8)


def test_speculators_ids_are_boundaries(tmp_path):
    head = found(speculators(tmp_path, {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}))
    assert head.config.feature_layers == (1, 3, 4)


@pytest.mark.parametrize("fused", [1, 2, 4])
def test_the_weights_tell_how_many_states_are_fused(eagle3, fused):
    ids = list(range(fused))
    folder = eagle3({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}, eagle3_tensors(fused=fused))
    assert found(folder).config.feature_layers == tuple(i + 1 for i in ids)


@pytest.mark.parametrize(
    ("config", "fused", "words"),
    [
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3]}}, 3, r"fc fuses 3 hidden states; 2 layers"),
        ({}, 2, "fc fuses 2 hidden states and its config names no layers"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 3, 30]}}, 3, r"1, 3, 30|2, 4, 31"),
    ],
)
def test_layers_that_do_not_fit_are_refused(eagle3, config, fused, words):
    with pytest.raises(ModelError, match=words):
        found(eagle3(config, eagle3_tensors(fused=fused)))


def test_a_target_of_too_few_layers_has_no_default(eagle3):
    with pytest.raises(ModelError, match="2, 1, -1; the target has 2 layers"):
        found(eagle3(), target=replace(TARGET, layers=2))


@pytest.mark.parametrize("fc", [True, False])
def test_a_head_of_the_last_hidden_state_alone(eagle3, fc):
    tensors = eagle3_tensors(fused=1)
    if not fc:
        tensors.pop("fc.weight")
    head = found(eagle3({"eagle_config": {"use_aux_hidden_state": False}}, tensors))
    assert head.config.feature_layers == (FINAL_NORM,)
    assert torch.equal(head.tensors["fc.weight"], tensors.get("fc.weight", torch.eye(H)))
    assert told(head, "after the norm")


# Pitfall 3: d2t.


def test_d2t_holds_offsets(eagle3):
    head = found(eagle3())
    assert draft_ids(head.tensors["d2t"]).tolist() == IDS.tolist() == head.tensors["t2d"].nonzero().flatten().tolist()


def test_a_missing_t2d_is_made(eagle3):
    tensors = eagle3_tensors()
    tensors.pop("t2d")
    head = found(eagle3({}, tensors))
    assert head.tensors["t2d"].nonzero().flatten().tolist() == IDS.tolist()
    assert told(head, "no t2d")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d2t": IDS}, r"d2t leads to token 50 of 40; it must hold target id minus draft id"),
        ({"d2t": torch.arange(DRAFT).flip(0)}, "two draft ids to one token"),
        ({"t2d": torch.zeros(V, dtype=torch.bool)}, "t2d and d2t name different tokens"),
        ({"d2t": None}, "d2t missing"),
        ({"d2t": torch.zeros(DRAFT - 1, dtype=torch.int64)}, r"d2t is \[11\]; lm_head makes it \[12\]"),
    ],
)
def test_wrong_maps_are_refused(eagle3, changes, words):
    tensors = {name: tensor for name, tensor in (eagle3_tensors() | changes).items() if tensor is not None}
    with pytest.raises(ModelError, match=words):
        found(eagle3({}, tensors))


def test_a_whole_vocabulary_needs_no_maps(eagle3):
    tensors = eagle3_tensors() | {"lm_head.weight": torch.ones(V, H)}
    maps = {"d2t": torch.zeros(V, dtype=torch.int64), "t2d": torch.ones(V, dtype=torch.bool)}
    head = found(eagle3({"draft_vocab_size": V}, tensors | maps))
    assert head.config.draft_vocabulary == V and not {"d2t", "t2d"} & head.tensors.keys()


# Pitfalls 4 and 5: norms.


@pytest.mark.parametrize("said", [None, True, False])
def test_a_missing_norm_before_residual_depends_on_the_producer(eagle3, tmp_path, said):
    config = {} if said is None else {"norm_before_residual": said}
    assert found(eagle3(config)).config.norm_before_residual is bool(said)
    (tmp_path / "head" / "pytorch_model.bin").unlink()
    head = found(speculators(tmp_path, config))
    assert head.config.norm_before_residual is (True if said is None else said)
    assert told(head, "no norm_before_residual") is (said is None)


def test_norm_before_residual_may_be_asked_for(eagle3):
    assert found(eagle3(), reading=HeadReading(norm_before_residual=True)).config.norm_before_residual


def test_norm_output_has_meant_two_things(eagle3):
    folder = eagle3({"norm_output": True})
    assert found(folder).config.norm_output and told(found(folder), "SpecForge before")
    again = found(folder, reading=HeadReading(norm_output=False))
    assert not again.config.norm_output and told(again, "norm_output false as asked for")
    assert not found(eagle3()).config.norm_output


@pytest.mark.parametrize(
    ("flag", "norms"),
    [
        ("fc_norm", {f"fc_norm.{i}.weight": torch.ones(H) for i in range(3)}),
        ("norm_before_fc", {"input_norm.weight": torch.ones(3 * H)}),
    ],
)
def test_norms_before_fc_are_told_by_the_weights(eagle3, flag, norms):
    head = found(eagle3({}, eagle3_tensors() | norms))
    assert getattr(head.config, flag) and told(head, f"the norm of {flag}")
    assert getattr(found(eagle3({flag: True}, eagle3_tensors() | norms)).config, flag)
    with pytest.raises(ModelError, match=f"says {flag}, yet it holds no such norm"):
        found(eagle3({flag: True}))


# Pitfall 6: EAGLE-1.


def eagle1(tmp_path, config=(), bias=True, **more):
    tensors = random_head(EagleConfig(sizes=SIZES, vocabulary=V, bias=bias)).tensors
    return publish(tmp_path, LLAMA_VALUES | dict(config), tensors | more, "pytorch_model.bin")


@pytest.mark.parametrize(
    ("config", "bias"), [({}, True), ({"bias": True}, True), ({"bias": False}, False), ({}, False)]
)
def test_eagle1_and_2_share_a_head(tmp_path, config, bias):
    head = found(eagle1(tmp_path, config, bias), "eagle")
    assert (head.method, head.format) == ("eagle", "EAGLE layout")
    assert head.config == EagleConfig(sizes=SIZES, vocabulary=V, bias=bias)
    assert told(head, "no bias in the config") is (not config)
    assert "layers.0.input_layernorm.weight" not in head.tensors


def test_a_promised_bias_must_be_there(tmp_path):
    with pytest.raises(ModelError, match=r"fc\.bias missing"):
        found(eagle1(tmp_path, {"bias": True}, bias=False))


def test_copies_of_the_targets_layers_are_not_read(tmp_path):
    folder = eagle1(tmp_path, **{"embed_tokens.weight": torch.ones(V, H), "lm_head.weight": torch.ones(V, H)})
    head = found(folder)
    assert "embed_tokens.weight" not in head.tensors and told(head, "copies of the target's own")


# What speculators files have beside.


def test_speculators_with_defaults_left_out(tmp_path):
    layer = {"rms_norm_eps": None, "max_position_embeddings": None, "rope_theta": 5e5}
    head = found(speculators(tmp_path, layer=layer), "eagle3")
    assert head.format == "speculators"
    assert head.config.sizes == replace(SIZES, rope={"rope_type": "default", "rope_theta": 5e5})


def test_speculators_parts_of_the_verifier_are_left(tmp_path):
    extra = {"verifier_lm_head.weight": torch.ones(V, H), "embed_tokens.weight": torch.ones(V, H)}
    head = found(speculators(tmp_path, tensors=random_head(EAGLE3).tensors | extra))
    assert head.config.own_embedding and "verifier_lm_head.weight" not in head.tensors


def test_further_layers_are_plain(tmp_path, eagle3):
    assert found(eagle3({"num_hidden_layers": 2}, eagle3_tensors(layers=2))).config.layers == 2


def test_a_sliding_window_is_told(eagle3):
    assert told(found(eagle3({"sliding_window": 2048})), "sliding window of 2048")
    full = {"sliding_window": 2048, "layer_types": ["full_attention"]}
    assert not told(found(eagle3(full)), "sliding window")


@pytest.mark.parametrize(
    ("config", "changes", "words"),
    [
        ({}, {"norm.weight": None}, r"tensor norm\.weight missing"),
        ({}, {"lm_head.weight": None}, r"tensor lm_head\.weight missing"),
        ({}, {"fc.weight": None}, r"tensor fc\.weight missing"),
        ({}, {"midlayer.mlp.up_proj.weight": torch.ones(25, H)}, r"up_proj\.weight is \[25, 16\]; .* it \[24, 16\]"),
        ({}, {"fc.weight": torch.ones(H, 50)}, r"fc\.weight is \[16, 50\]; .* target's width 16"),
        ({}, {"surplus": torch.ones(1)}, "a tensor its network has not: surplus"),
        ({"vocab_size": V + 8}, {}, "a vocabulary of 48; the target's logits have 40 rows"),
        ({"target_hidden_size": 32}, {}, "hidden states of width 32; the target's have 16"),
        ({"partial_rotary_factor": 0.5}, {}, "rotates 0.5 of a head"),
        ({"hidden_size": "wide"}, {}, "makes no decoder layer|not understood"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["low"]}}, {}, "not understood"),
        ({"rope_parameters": {"rope_type": "spiral", "rope_theta": 1.0}}, {}, "no network can be made"),
        ({}, {"fc.weight": torch.ones(H, 3 * H).to(torch.float8_e4m3fn)}, "float8"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(eagle3, config, changes, words):
    tensors = {name: tensor for name, tensor in (eagle3_tensors() | changes).items() if tensor is not None}
    with pytest.raises(ModelError, match=words) as refusal:
        found(eagle3(config, tensors))
    assert "\n" not in str(refusal.value) and "cannot be used" in str(refusal.value)


def test_a_head_of_another_width_is_refused(eagle3):
    with pytest.raises(ModelError, match="hidden size 16 is not the target's 8|width"):
        found(eagle3(), target=replace(TARGET, hidden_size=8))


def test_a_head_of_another_method_is_refused(eagle3):
    with pytest.raises(ConfigError, match="a head of method eagle3, not medusa"):
        found(eagle3(), "medusa")


def test_options_that_say_nothing_are_refused(eagle3):
    with pytest.raises(ConfigError, match="feed_normed says nothing"):
        found(eagle3(), reading=HeadReading(feed_normed=True))
    with pytest.raises(ConfigError, match="there are none"):
        found(eagle3(), reading=HeadReading(layer_ids="outputs"))
    with pytest.raises(ConfigError, match="layer_ids 'edges'"):
        HeadReading(layer_ids="edges")
    with pytest.raises(ConfigError, match="no layer_ids beside"):
        HeadReading(layer_ids="outputs", feature_layers=(1,))


def test_speculators_of_an_unknown_type_are_refused(tmp_path):
    with pytest.raises(ModelError, match="speculators model type 'peagle' is not known"):
        found(speculators(tmp_path, {"speculators_model_type": "peagle"}))
