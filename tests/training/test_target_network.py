"""The frozen target gives the states and logits transformers names, padded or not."""

import pytest
import torch
from tiny_data import CONTEXT, HIDDEN, LAYERS, chat_tokenizer, save_target
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM

from foredraft.core.errors import ConfigError, ModelError, PromptError
from foredraft.model.features import FINAL_NORM
from foredraft.training.target_network import TargetNetwork, fingerprint

TEXTS = [torch.tensor([5, 9, 17, 33, 8, 41, 7, 60]), torch.tensor([7, 12, 60, 3, 90]), torch.tensor([44, 80])]
LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]
KINDS = {
    "llama": {},
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "gemma2": {"layer_types": LOCAL, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.0},
    "gpt_oss": {"layer_types": LOCAL, "num_local_experts": 4, "num_experts_per_tok": 2},
    "granite": {"embedding_multiplier": 2.0, "logits_scaling": 3.0},
    "cohere2": {"layer_types": LOCAL, "logit_scale": 0.25},
}
EAGER = {"gemma2", "gpt_oss"}  # soft-capped scores, sinks


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "head_dim": 8}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "sliding_window": 4}
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    torch.manual_seed(0)
    config = AutoConfig.for_model(request.param, **(sizes | special | KINDS[request.param]))
    module = AutoModelForCausalLM.from_config(config)
    for parameter in module.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    folder = tmp_path_factory.mktemp(request.param)
    module.save_pretrained(folder)
    chat_tokenizer().save_pretrained(folder)
    return str(folder)


def test_states_and_logits_are_those_of_transformers(folder):
    """Each text alone, eager, against all of them padded; the last entry of transformers is the normed one."""
    target = TargetNetwork.load(folder, dtype="fp32", device="cpu")
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    got = target.features(pad_sequence(TEXTS, batch_first=True), (0, 2, FINAL_NORM, 1))
    assert got.features.shape == (3, 8, 4 * 32) and got.final.shape == (3, 8, 32)
    for text, tokens in enumerate(TEXTS):
        with torch.no_grad():
            wanted = plain(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
        hidden = [state[0] for state in wanted.hidden_states]
        rows = slice(0, len(tokens))
        for part, state in zip(got.features[text, rows].split(32, -1), (0, 2, -1, 1), strict=True):
            torch.testing.assert_close(part, hidden[state], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.final[text, rows], hidden[-1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(target.logits(got.final[text, rows]), wanted.logits[0], rtol=1e-4, atol=1e-4)


def test_the_fastest_attention_that_is_right_is_taken(folder):
    target = TargetNetwork.load(folder, dtype="fp32", device="cpu")
    assert target.attention == ("eager" if target.config.model_type in EAGER else "sdpa")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return TargetNetwork.load(save_target(tmp_path_factory.mktemp("target")), dtype="fp32", device="cpu")


def test_the_last_boundary_is_before_the_last_norm(target):
    states = target.features(TEXTS[0][None], (LAYERS,))
    torch.testing.assert_close(target.module.model.norm(states.features), states.final)
    assert not torch.allclose(states.features, states.final)


def test_no_boundaries_are_no_features(target):
    states = target.features(TEXTS[0][None], ())
    assert states.features.shape == (1, 8, 0) and states.final.shape == (1, 8, HIDDEN)


def test_states_may_enter_a_graph_and_carry_no_gradient(target):
    states = target.features(TEXTS[0][None], (1,))
    weight = torch.ones(HIDDEN, requires_grad=True)
    (states.features * weight).sum().backward()
    assert weight.grad is not None and not states.features.requires_grad
    assert not any(parameter.requires_grad for parameter in target.module.parameters())


def test_what_is_known_of_the_target(target):
    assert (target.vocabulary.size, target.vocabulary.rows) == (len(target.tokenizer), len(target.tokenizer) + 4)
    assert target.vocabulary.eos_token_ids == (target.tokenizer.eos_token_id,)
    assert (target.capability.layers, target.capability.context_length) == (LAYERS, CONTEXT)
    assert target.borrowed.embed(TEXTS[0]).shape == (8, HIDDEN)
    assert (target.dtype, target.device.type) == (torch.float32, "cpu")


@pytest.mark.parametrize("boundary", [LAYERS + 1, -2])
def test_a_boundary_the_target_has_not_is_refused(target, boundary):
    with pytest.raises(ModelError, match=f"feature layer {boundary} is asked for"):
        target.features(TEXTS[0][None], (0, boundary))


def test_texts_longer_than_the_context_are_refused(target):
    with pytest.raises(PromptError, match=f"a sample has {CONTEXT + 1} tokens; the context of .* holds {CONTEXT}"):
        target.features(torch.ones(1, CONTEXT + 1, dtype=torch.int64), ())


def test_a_target_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no model at"):
        TargetNetwork.load(str(tmp_path / "absent"))


def test_an_unknown_dtype_is_refused(target):
    with pytest.raises(ConfigError, match="dtype 'fp8' is not known"):
        TargetNetwork.load(target.checkpoint.path, dtype="fp8")


def test_the_fingerprint_is_that_of_the_weights(target, tmp_path):
    same, other = save_target(tmp_path / "same"), save_target(tmp_path / "other", rms_norm_eps=1e-5)
    config = target.config
    assert target.fingerprint == fingerprint(same, config) != fingerprint(other, config)
    assert fingerprint("someone/model", config) != fingerprint("someone/other", config)
