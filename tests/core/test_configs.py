"""A mistake in a parameter gives one line that names the value."""

import json
from pathlib import Path

import pytest

from foredraft import ConfigError, SamplingParams, SpeculationConfig

WRONG_SAMPLING = {
    "temperature": [-0.1, float("nan"), "hot", True],
    "top_k": [-1, 2.5],
    "top_p": [0, 1.2],
    "min_p": [-0.1, 1.1],
    "typical_p": [0, 2],
    "repetition_penalty": [0, -1, float("inf")],
    "presence_penalty": [-3, 3],
    "frequency_penalty": [-3, 3],
    "logit_bias": [{5: 200}],
    "allowed_token_ids": [()],
    "max_new_tokens": [0, -1, 1.5],
    "min_new_tokens": [-1, 10**6],
    "stop": [("",)],
    "bad_words": [("",)],
    "seed": [-1, 2**63],
    "n": [0, 5000],
    "logprobs": [-1, 101],
}
WRONG_SPECULATION = {
    "num_speculative_tokens": [0, 1000],
    "tree_size": [-1, 1000],
    "tree_width": [0, 99],
    "draft_confidence_threshold": [-0.1, 1.1],
    "prompt_lookup_max": [0, 65],
    "prompt_lookup_min": [0, 5],
    "suffix_decoding_max_tree_depth": [1, 1000],
    "suffix_decoding_max_cached_requests": [-1],
    "suffix_decoding_max_spec_factor": [-1.0],
    "suffix_decoding_min_token_prob": [2.0],
    "draft_weights": ["int4"],
    "rejection_sample_method": ["blok"],
    "draft_sample_method": ["random"],
}


def cases(wrong):
    return [(name, value) for name, values in wrong.items() for value in values]


@pytest.mark.parametrize("name, value", cases(WRONG_SAMPLING))
def test_sampling_params_refuse(name, value):
    with pytest.raises(ConfigError) as error:
        SamplingParams(**{name: value})
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name, value", cases(WRONG_SPECULATION))
def test_speculation_config_refuses(name, value):
    with pytest.raises(ConfigError) as error:
        SpeculationConfig.from_json(json.dumps({name: value}))
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["method", "model", "drafters", "self_skip", "prediction"])
def test_texts_of_another_type_are_refused(name):
    with pytest.raises(ConfigError, match=rf"^{name} is \['ngram'\]; it must be a string$"):
        SpeculationConfig(**{name: ["ngram"]})


def test_a_model_may_be_a_path():
    assert SpeculationConfig(model=Path("some/folder")) == SpeculationConfig(model="some/folder")


def test_an_unknown_key_is_answered_with_the_nearest():
    with pytest.raises(
        ConfigError, match="'num_speculative_token' is not known; did you mean 'num_speculative_tokens'"
    ):
        SpeculationConfig.from_json('{"num_speculative_token": 3}')


@pytest.mark.parametrize(
    "text", ["{", "[]", "3", '{"method": 3}', '{"tree_size": true}', '{"num_speculative_tokens": 1.5}']
)
def test_what_is_no_config_is_refused(text):
    with pytest.raises(ConfigError):
        SpeculationConfig.from_json(text)


def test_rules_that_need_a_law_are_not_given_coupled_drafts():
    assert SpeculationConfig().draft_sampling == "coupled"
    assert SpeculationConfig(rejection_sample_method="block").draft_sampling == "probabilistic"
    with pytest.raises(ConfigError, match="reuse the noise"):
        SpeculationConfig(rejection_sample_method="standard", draft_sample_method="coupled")
    with pytest.raises(ConfigError, match="chains"):
        SpeculationConfig(rejection_sample_method="standard", tree_size=8)


def test_requests_may_differ_in_what_does_not_make_a_drafter():
    one = SpeculationConfig(method="ngram", num_speculative_tokens=3, tree_size=9, rejection_sample_method="tree")
    assert one.drafter_key == SpeculationConfig(method="ngram").drafter_key
    assert one.drafter_key == SpeculationConfig(method="ngram", prompt_lookup_max=3, prompt_lookup_min=1).drafter_key
    assert SpeculationConfig(method="lookahead").drafter_key != SpeculationConfig(method="recycling").drafter_key
