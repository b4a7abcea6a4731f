"""A model that cannot be run exactly is refused at load, in one line that says why."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import load_packed, load_plain, plain_logits, save_tiny, tiny_config
from transformers import AutoConfig

from foredraft.core.errors import ModelError
from foredraft.model import loading
from foredraft.model.loading import find_checkpoint

WEIGHTS = "model.safetensors"
NO_INTERFACE = "does not go through transformers' AttentionInterface"


def refusal(name) -> str:
    with pytest.raises(ModelError) as caught:
        load_packed(str(name))
    message = str(caught.value)
    assert message and "\n" not in message
    return message


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("bloom", NO_INTERFACE),
        ("falcon", NO_INTERFACE),
        ("gptj", NO_INTERFACE),
        ("mpt", NO_INTERFACE),
        ("mamba2", "linear_attention"),
        ("qwen3_next", "linear_attention"),
        ("qwen3_5_text", "linear_attention"),
        ("recurrent_gemma", "linear_attention"),
        ("rwkv", "recurrent state"),
        ("llama4_text", "chunked_attention"),
        ("t5", "no causal language model"),
        ("vit", "no causal language model"),
    ],
)
def test_architectures_refused_by_config(kind, reason, tmp_path):
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=reason):
        find_checkpoint(str(tmp_path))


def test_convolution_layers_are_refused(tmp_path):
    tiny_config("lfm2", layer_types=["conv", "full_attention", "conv"]).save_pretrained(tmp_path)
    assert "layers of kind conv" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        (
            "roberta",
            {"is_decoder": True, "pad_token_id": 1},
            "off transformers' own",
        ),  # positions start past the padding
        ("bert", {}, "off transformers' own"),  # not causal
        ("diffllama", {}, "off transformers' own"),  # two attentions a layer
        ("doge", {}, "mask or position bias of its own"),
    ],
)
def test_architectures_refused_by_trial(kind, options, reason, tmp_path):
    assert reason in refusal(save_tiny(tiny_config(kind, **options), tmp_path))


def drop_tensor(folder) -> None:
    rewrite(folder, lambda state: state.pop("model.layers.1.mlp.up_proj.weight"))


def misshape_tensor(folder) -> None:
    rewrite(folder, lambda state: state.update({"model.layers.1.mlp.up_proj.weight": torch.zeros(3, 32)}))


def poison_tensor(folder) -> None:
    rewrite(folder, lambda state: state["model.layers.1.mlp.up_proj.weight"].fill_(float("nan")))


def rewrite(folder, change) -> None:
    state = load_file(folder / WEIGHTS)
    change(state)
    save_file(state, folder / WEIGHTS, metadata={"format": "pt"})


def truncate(folder) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "incomplete metadata"),
        (drop_tensor, "model.layers.1.mlp.up_proj.weight missing"),
        (misshape_tensor, r"up_proj.weight is [3, 32]; the config makes it [48, 32]"),
        (poison_tensor, "nan off"),
        (lambda folder: (folder / WEIGHTS).unlink(), "no file named"),
        (lambda folder: (folder / "config.json").unlink(), "holds no config.json"),
        (lambda folder: (folder / "config.json").write_text("{nope"), "not a valid JSON file"),
        (lambda folder: (folder / "config.json").write_text(json.dumps({"model_type": "martian"})), "martian"),
    ],
)
def test_damaged_checkpoints_are_refused(damage, reason, tmp_path, capfd):
    save_tiny(tiny_config("llama"), tmp_path)
    damage(tmp_path)
    capfd.readouterr()
    assert reason in refusal(tmp_path)
    assert "LOAD REPORT" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["/no/such/folder", "./nope", "nope", "a/b/c", "~/nope"])
def test_missing_folders_are_refused(name):
    assert f"no model at {name!r}" in refusal(name)


def test_unreachable_hub_is_asked_once(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(loading, "hub_answers", lambda: asked.append(1))
    monkeypatch.setattr(loading.constants, "HF_HUB_CACHE", str(tmp_path))
    assert "hub is out of reach" in refusal("nobody/nothing")
    assert len(asked) == 1


def test_window_in_a_config_whose_model_ignores_it_is_ignored(tmp_path):
    folder = save_tiny(tiny_config("llama", sliding_window=2), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["sliding_window"] == 2
    packed, tokens = load_packed(folder), [5, 3, 7, 4, 6, 2]
    torch.testing.assert_close(packed.trial_logits()[:2], plain_logits(load_plain(folder), tokens)[4:])
