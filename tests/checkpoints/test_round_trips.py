"""What is written is read back: equal tensors bit for bit, an equal config."""

import json
from dataclasses import replace

import pytest
import torch
from tiny_heads import (
    DFLASH,
    DRAFT,
    EAGLE3,
    LLAMA3_ROPE,
    MEDUSA,
    QWEN_SIZES,
    SIZES,
    TARGET,
    H,
    V,
    found,
    random_head,
    same,
)

from foredraft.checkpoints.head_writer import WRITERS, write_head
from foredraft.core.errors import ConfigError
from foredraft.heads.eagle import EagleConfig
from foredraft.heads.mtp import MtpConfig
from foredraft.model.features import FINAL_NORM

EAGLE = EagleConfig(sizes=SIZES, vocabulary=V)
MTP = MtpConfig(sizes=QWEN_SIZES, vocabulary=V)
CASES = {
    "eagle": (EAGLE, ["eagle"]),
    "eagle, no bias, two layers": (replace(EAGLE, bias=False, layers=2), ["eagle"]),
    "eagle3": (EAGLE3, ["speculators", "eagle"]),
    "eagle3, whole vocabulary": (replace(EAGLE3, draft_vocabulary=V), ["speculators", "eagle"]),
    "eagle3 at boundaries that look like ids": (replace(EAGLE3, feature_layers=(3, 5, 6)), ["speculators", "eagle"]),
    "eagle3 from the embedding to the last layer": (
        replace(EAGLE3, feature_layers=(0, 8)),
        ["speculators", "eagle"],
    ),
    "eagle3 of the last hidden state": (replace(EAGLE3, feature_layers=(FINAL_NORM,)), ["eagle"]),
    "eagle3.1": (replace(EAGLE3, fc_norm=True, norm_output=True), ["speculators", "eagle"]),
    "eagle3, everything else": (
        replace(
            EAGLE3,
            sizes=replace(QWEN_SIZES, rope=LLAMA3_ROPE),
            layers=3,
            norm_before_fc=True,
            norm_before_residual=True,
            own_embedding=True,
        ),
        ["speculators", "eagle"],
    ),
    "medusa": (MEDUSA, ["medusa", "medusa-vllm"]),
    "medusa, deep, no bias, measured": (
        replace(MEDUSA, layers=2, bias=False, accuracies=((0.61, 0.1), (0.3, 1 / 3))),
        ["medusa", "medusa-vllm"],
    ),
    "medusa, reduced": (replace(MEDUSA, draft_vocabulary=DRAFT), ["medusa-vllm"]),
    "mtp": (MTP, ["speculators"]),
    "mtp with parts of its own": (
        replace(MTP, sizes=SIZES, own_head=True, own_embedding=True, feed_normed=True),
        ["speculators"],
    ),
    "dflash": (DFLASH, ["speculators", "dflash"]),
    "dflash, causal": (replace(DFLASH, causal=True, layers=1), ["dflash"]),
}
PAIRS = [(config, form) for config, forms in CASES.values() for form in forms]
IDS = [f"{name} as {form}" for name, (_, forms) in CASES.items() for form in forms]


def write(head, folder, form, **options):
    return write_head(
        head,
        folder,
        format=form,
        target_name="org/target",
        target_architectures=["LlamaForCausalLM"],
        speculative_tokens=3,
        **options,
    )


@pytest.mark.parametrize(("config", "form"), PAIRS, ids=IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_head_comes_back_as_it_was_written(tmp_path, config, form, dtype):
    head = random_head(config, dtype)
    written = write(head, tmp_path, form)
    again = found(str(tmp_path), head.method)
    assert again.config == config
    assert same(again.tensors, head.tensors)
    assert again.layer_of is None
    assert written.files[-1] == "config.json"
    assert {path.name for path in tmp_path.iterdir()} == set(written.files)


def test_every_writer_is_covered():
    assert {(form, kind) for form in WRITERS for kind in WRITERS[form]} == {(form, type(c)) for c, form in PAIRS}


@pytest.mark.parametrize(
    ("config", "form"), [(EAGLE3, "speculators"), (replace(MEDUSA, draft_vocabulary=DRAFT), "medusa-vllm")], ids=str
)
def test_int8_rounds_weights_and_keeps_ids(tmp_path, config, form):
    wide = {"hidden_size": 64}
    sizes = {"sizes": replace(SIZES, **wide), "target_hidden_size": 64} if config is EAGLE3 else wide
    head = random_head(replace(config, **sizes))
    write(head, tmp_path, form, int8=True)
    again = found(str(tmp_path), head.method, target=replace(TARGET, hidden_size=64))
    assert again.config == head.config
    for name, tensor in head.tensors.items():
        if tensor.is_floating_point():
            assert torch.allclose(again.tensors[name], tensor, atol=0.03)
        else:
            assert torch.equal(again.tensors[name], tensor) and again.tensors[name].dtype == tensor.dtype
    assert not torch.equal(again.tensors["lm_heads.0.weight" if config is not EAGLE3 else "fc.weight"], tensor)


def test_configs_say_what_engines_read(tmp_path):
    write(random_head(EAGLE3), tmp_path / "speculators", "speculators")
    write(random_head(EAGLE3), tmp_path / "eagle", "eagle")
    write(random_head(DFLASH), tmp_path / "dflash", "dflash", target_layers=8)
    write(random_head(DFLASH), tmp_path / "speculators-dflash", "speculators")
    vllm, eagle, dflash, vllm_dflash = (
        json.loads((tmp_path / name / "config.json").read_text())
        for name in ("speculators", "eagle", "dflash", "speculators-dflash")
    )
    assert vllm["speculators_model_type"] == vllm["speculators_config"]["algorithm"] == "eagle3"
    assert vllm["speculators_config"]["verifier"] == {
        "name_or_path": "org/target",
        "architectures": ["LlamaForCausalLM"],
    }
    assert vllm["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert vllm["norm_before_residual"] is False
    assert vllm["transformer_layer_config"]["rope_theta"] == 10000.0
    assert vllm["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert eagle["rope_theta"] == 10000.0 and eagle["draft_vocab_size"] == DRAFT
    assert eagle["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert dflash["dflash_config"]["target_layer_ids"] == [1, 3, 5, 7]
    assert dflash["num_target_layers"] == 8 and dflash["block_size"] == 4
    assert vllm_dflash["aux_hidden_state_layer_ids"] == [2, 4, 6, 8]


def test_a_bias_of_queries_promises_none_of_the_output(tmp_path):
    config = replace(EAGLE3, sizes=QWEN_SIZES)
    write(random_head(config), tmp_path, "eagle")
    values = json.loads((tmp_path / "config.json").read_text())
    assert values["qkv_bias"] is True and values["attention_bias"] is False


@pytest.mark.parametrize(
    ("config", "form", "words"),
    [
        (EAGLE3, "medusa", "formats that can: speculators, eagle"),
        (MEDUSA, "speculators", "formats that can: medusa, medusa-vllm"),
        (EAGLE3, "eagel", "did you mean 'eagle'"),
        (replace(MEDUSA, draft_vocabulary=DRAFT), "medusa", "medusa-vllm has one"),
        (replace(EAGLE3, feature_layers=(FINAL_NORM,)), "speculators", "format eagle"),
        (replace(DFLASH, causal=True), "speculators", "format dflash"),
    ],
)
def test_a_format_that_cannot_hold_the_head_is_refused(tmp_path, config, form, words):
    with pytest.raises(ConfigError, match=words):
        write(random_head(config), tmp_path / "out", form)
    assert not (tmp_path / "out").exists()


def test_a_module_of_another_architecture_stays_in_its_target(tmp_path):
    head = replace(random_head(replace(MTP, sizes=replace(SIZES, hidden_size=H))), layer_of="deepseek_v3")
    with pytest.raises(ConfigError, match="layer of deepseek_v3"):
        write(head, tmp_path, "speculators")


def test_feeding_back_what_vllm_does_not_is_told(tmp_path):
    assert "before the norm" in write(random_head(MTP), tmp_path / "a", "speculators").notes[0]
    assert write(random_head(replace(MTP, feed_normed=True)), tmp_path / "b", "speculators").notes == ()
