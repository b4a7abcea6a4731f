"""Medusa heads in both published forms, counted from their weights."""

from dataclasses import replace

import pytest
import torch
from tiny_heads import DRAFT, IDS, MEDUSA, TARGET, H, V, found, publish, random_head, same

from foredraft.core.errors import ModelError
from foredraft.heads.build import build_head

CONFIG = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "lmsys/vicuna-7b-v1.3"}
VLLM_CONFIG = {"model_type": "medusa", "hidden_size": H, "vocab_size": V, "num_heads": 3, "num_hidden_layers": 1}


def original(heads=3, layers=1, bias=True):
    """Tensors as Medusa's repository names them."""
    tensors = random_head(replace(MEDUSA, heads=heads, layers=layers, bias=bias)).tensors
    named = {name.removeprefix("blocks."): tensor for name, tensor in tensors.items() if name.startswith("blocks.")}
    return named | {f"{i}.{layers}.weight": tensors[f"lm_heads.{i}.weight"] for i in range(heads)}


def vllm(ids=None, rows=V):
    """Tensors as vLLM names them."""
    made = {f"medusa_heads.blocks.{i}.layers.0.weight": torch.randn(H, H) for i in range(3)}
    made |= {f"lm_heads.{i}.weight": torch.randn(rows, H) for i in range(3)}
    return made if ids is None else made | {"token_map": ids}


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
def test_heads_are_counted_from_the_weights(tmp_path, file):
    head = found(publish(tmp_path, CONFIG, original(), file), "medusa")
    assert (head.method, head.format) == ("medusa", "Medusa (medusa_lm_head)")
    assert head.config == MEDUSA
    assert same(head.tensors, random_head(MEDUSA).tensors)
    assert any("says medusa_num_heads 2, the weights hold 3" in note for note in head.notes)


def test_names_may_carry_the_modules_prefix(tmp_path):
    tensors = {f"medusa_head.{name}": tensor for name, tensor in original().items()}
    others = {"model.norm.weight": torch.ones(H), "lm_head.weight": torch.ones(V, H)}
    head = found(publish(tmp_path, CONFIG, tensors | others))
    assert head.config == MEDUSA
    assert "2 tensors beside those of the heads are not read" in head.notes


def test_blocks_that_share_their_parameters_are_stored_once(tmp_path):
    tensors = original(layers=2)
    once = {name: tensor for name, tensor in tensors.items() if ".1.linear." not in name}
    head = found(publish(tmp_path, CONFIG | {"medusa_num_layers": 2}, once, "medusa_lm_head.safetensors"))
    assert head.config == replace(MEDUSA, layers=2)
    assert torch.equal(head.tensors["blocks.2.1.linear.bias"], head.tensors["blocks.2.0.linear.bias"])
    assert any("the first one again" in note for note in head.notes)


def test_vllms_form(tmp_path):
    head = found(publish(tmp_path, VLLM_CONFIG, vllm()), "medusa")
    assert head.format == "Medusa (vLLM)"
    assert head.config == replace(MEDUSA, bias=False)
    network = build_head(head.config, head.tensors, None, dtype=torch.float32, device="cpu")
    hidden = torch.randn(H)
    block, output = (vllm_tensor(tmp_path, name) for name in ("medusa_heads.blocks.1.layers.0", "lm_heads.1"))
    wanted = output @ (hidden + torch.nn.functional.silu(block @ hidden))
    assert torch.allclose(network(hidden)[1], wanted, atol=1e-5)


def vllm_tensor(folder, name):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")[f"{name}.weight"]


@pytest.mark.parametrize("rows", [DRAFT, V])
def test_a_token_map_names_the_target_ids(tmp_path, rows):
    tensors = vllm(IDS, rows)
    head = found(publish(tmp_path, VLLM_CONFIG | {"truncated_vocab_size": DRAFT}, tensors))
    assert head.config.draft_vocabulary == DRAFT
    assert head.tensors["target_ids"].tolist() == IDS.tolist()
    kept = tensors["lm_heads.2.weight"] if rows == DRAFT else tensors["lm_heads.2.weight"][IDS]
    assert torch.equal(head.tensors["lm_heads.2.weight"], kept)


@pytest.mark.parametrize("name", ["lm_head.weight", "lm_heads.0.weight"])
def test_one_output_layer_may_serve_all_heads(tmp_path, name):
    blocks = {n: tensor for n, tensor in vllm().items() if "blocks" in n}
    one = torch.randn(V, H)
    head = found(publish(tmp_path, VLLM_CONFIG | {"original_lm_head": True}, blocks | {name: one}))
    assert all(torch.equal(head.tensors[f"lm_heads.{i}.weight"], one) for i in range(3))
    assert "its heads share one output layer" in head.notes


@pytest.mark.parametrize(
    ("tensors", "config", "words"),
    [
        (original() | {"1.1.weight": torch.ones(V, H + 1)}, {}, r"lm_heads\.1\.weight is \[40, 17\]"),
        ({n: t for n, t in original().items() if n != "1.0.linear.bias"}, {}, r"blocks\.1\.0\.linear\.bias missing"),
        (
            {n: t for n, t in original().items() if n != "0.1.weight"},
            {},
            "its first head holds no output layer",
        ),
        (original(), {"vocab_size": V + 1}, "a vocabulary of 41; the target's logits have 40 rows"),
        (vllm(None, DRAFT), VLLM_CONFIG, "12 rows for a vocabulary of 40 and no token_map"),
        (vllm(IDS + V, DRAFT), VLLM_CONFIG, "leads out of a vocabulary of 40"),
        (vllm(torch.zeros(DRAFT, dtype=torch.int64), DRAFT), VLLM_CONFIG, "names a token twice"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, tensors, config, words):
    with pytest.raises(ModelError, match=words):
        found(publish(tmp_path, config, tensors))


def test_heads_of_another_width_are_refused(tmp_path):
    with pytest.raises(ModelError, match="width 16; the target's have 32"):
        found(publish(tmp_path, CONFIG, original()), target=replace(TARGET, hidden_size=32))
