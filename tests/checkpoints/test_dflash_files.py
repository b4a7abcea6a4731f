"""DFlash heads in their own layout and in speculators'."""

from dataclasses import replace

import pytest
import torch
from tiny_heads import DFLASH, LLAMA_VALUES, TARGET, H, V, found, publish, random_head

from foredraft.checkpoints.head import HeadReading
from foredraft.core.errors import ModelError

LAYER = LLAMA_VALUES | {"model_type": "qwen3", "num_hidden_layers": 2, "rope_theta": 1e6}
OWN = {"mask_token_id": 39, "target_layer_ids": [1, 3, 5, 7]}
ROPE = {"rope_type": "default", "rope_theta": 1e6}
WANTED = replace(DFLASH, sizes=replace(DFLASH.sizes, rope=ROPE, max_positions=2048))


def z_lab(tmp_path, config=(), own=(), **tensors):
    values = LAYER | {"architectures": ["DFlashDraftModel"], "block_size": 4, "dflash_config": OWN | dict(own)}
    return publish(tmp_path, values | dict(config), random_head(DFLASH).tensors | tensors)


def speculators(tmp_path, config=(), **tensors):
    values = {
        "speculators_model_type": "dflash",
        "block_size": 4,
        "mask_token_id": 39,
        "aux_hidden_state_layer_ids": [2, 4, 6, 8],
        "draft_vocab_size": V,
        "transformer_layer_config": LAYER,
    }
    return publish(tmp_path, values | dict(config), random_head(DFLASH).tensors | tensors)


def test_target_layer_ids_are_outputs(tmp_path):
    head = found(z_lab(tmp_path), "dflash")
    assert (head.method, head.format) == ("dflash", "DFlash")
    assert head.config == WANTED
    assert any("read as layer outputs: +1" in note for note in head.notes)
    assert found(str(tmp_path), reading=HeadReading(layer_ids="boundaries")).config.feature_layers == (1, 3, 5, 7)


def test_speculators_store_boundaries(tmp_path):
    head = found(speculators(tmp_path), "dflash")
    assert head.format == "speculators"
    assert head.config == WANTED


def test_the_block_size_may_lie_inside(tmp_path):
    assert found(z_lab(tmp_path, {"block_size": None}, {"block_size": 4})).config.block_size == 4


@pytest.mark.parametrize("config", [{"is_causal": True}, {"dflash_query_causal": True}])
def test_causal_blocks(tmp_path, config):
    assert found(z_lab(tmp_path, config)).config.causal
    assert found(z_lab(tmp_path, {}, {"causal": True})).config.causal


def test_default_layers_are_spread_evenly(tmp_path):
    head = found(z_lab(tmp_path, {}, {"target_layer_ids": None}), target=replace(TARGET, layers=36))
    assert head.config.feature_layers == (2, 13, 23, 34)  # after layers round(1, 11.67, 22.33, 33)
    assert any("no layer ids" in note for note in head.notes)


def test_frozen_parts_of_the_target_are_left(tmp_path):
    parts = {
        "embed_tokens.weight": torch.ones(V, H),
        "lm_head.weight": torch.ones(9, H),
        "d2t": torch.zeros(9),
        "verifier_norm.weight": torch.ones(H),
    }
    head = found(speculators(tmp_path, {"draft_vocab_size": 9}, **parts))
    assert not parts.keys() & head.tensors.keys()
    assert any("which is used whole" in note for note in head.notes)


@pytest.mark.parametrize(
    ("config", "own", "words"),
    [
        ({}, {"mask_token_id": None}, "mask_token_id None; it must be a whole number"),
        ({}, {"mask_token_id": V}, "mask_token_id 40 is outside its vocabulary of 40"),
        ({"block_size": 1}, {}, "block_size 1; it must be a whole number from 2"),
        ({"draft_shift": True}, {}, "sets draft_shift to True"),
        ({}, {"sample_from_anchor": True}, "sets sample_from_anchor"),
        ({}, {"target_layer_ids": [1, 3, 5]}, "fuses 4 hidden states; 3 layers"),
        ({}, {"target_layer_ids": [1, 3, 5, 8]}, "boundaries 2, 4, 6, 9; the target has 8 layers"),
        ({"hidden_size": 32}, {}, "width 32; the target's have 16"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, config, own, words):
    with pytest.raises(ModelError, match=words):
        found(z_lab(tmp_path, config, own))


def test_parts_of_dflash2_are_refused(tmp_path):
    with pytest.raises(ModelError, match="candidate_selector"):
        found(z_lab(tmp_path, **{"candidate_selector.predecessor_codebook": torch.ones(2)}))
