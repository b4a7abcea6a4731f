"""Requests: what is served reaches the engine as it was meant, and what is not is refused by its name."""

import json
from dataclasses import replace

import pytest
from openai.types.chat import completion_create_params as chat_params
from openai.types.completion_create_params import CompletionCreateParamsBase
from request_bodies import (
    SECRET,
    USER,
    chat,
    chat_problem,
    completion,
    completion_problem,
    problem_of,
    sampled,
)

from foredraft.core.errors import ConfigError, PromptError
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.client_words import client_words
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.protocol.limits import DEFAULTS
from foredraft.serving.protocol.speculation_field import SpeculationField
from foredraft.serving.protocol.to_order import prompts_of, speculation_of
from foredraft.serving.protocol.token_requests import DetokenizeRequest, TokenizeRequest

WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def test_a_plain_chat_asks_for_openai_s_defaults():
    expected = SamplingParams(temperature=1.0, max_new_tokens=DEFAULTS.max_tokens)
    assert sampled(chat()) == expected


def test_a_plain_completion_asks_for_openai_s_defaults():
    assert sampled(completion()) == SamplingParams(temperature=1.0, max_new_tokens=16)


def test_every_sampling_field_reaches_the_engine():
    fields = {
        "n": 2,
        "seed": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "typical_p": 0.8,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.3,
        "ignore_eos": True,
    }
    asked = completion(
        **fields,
        logit_bias={"5": 3, "7": -2.5},
        stop="END",
        stop_token_ids=[3, 4],
        bad_words=["no"],
        min_tokens=2,
        max_tokens=9,
        logprobs=3,
        echo=True,
        guided_regex="a+",
    )
    assert sampled(asked) == SamplingParams(
        **fields,
        logit_bias={5: 3.0, 7: -2.5},
        stop=("END",),
        stop_token_ids=(3, 4),
        bad_words=("no",),
        min_new_tokens=2,
        max_new_tokens=9,
        logprobs=3,
        prompt_logprobs=3,
        guided_regex="a+",
    )


@pytest.mark.parametrize(("name", "kind"), [("chat", ChatRequest), ("completion", CompletionRequest)])
def test_null_is_as_if_absent(name, kind):
    required = {"chat": {"messages": [USER]}, "completion": {"prompt": "x"}}[name]
    nulls = dict.fromkeys(set(kind.model_fields) - set(required))
    assert kind.model_validate({**required, **nulls}) == kind.model_validate(required)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False},
        {"modalities": ["text"]},
        {"service_tier": "auto"},
        {"service_tier": "default"},
        {"logprobs": False},
        {"stream_options": {"include_obfuscation": False}, "stream": True},
        {"tools": []},
        {"parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"user": "somebody", "safety_identifier": "x", "prompt_cache_key": "y"},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields):
    assert chat_problem(**fields) is None


@pytest.mark.parametrize(
    ("field", "value", "hint"),
    [
        ("store", True, "not stored"),
        ("store", 0, "not stored"),
        ("modalities", ["text", "audio"], "text only"),
        ("audio", {"voice": "alloy"}, "text only"),
        ("web_search_options", {}, "search"),
        ("functions", [{"name": "f"}], "use tools"),
        ("function_call", "auto", "use tool_choice"),
        ("service_tier", "flex", "one tier"),
        ("reasoning_effort", "high", "cannot be chosen"),
        ("verbosity", "low", "cannot be chosen"),
        ("metadata", {"a": "b"}, "not stored"),
        ("prompt_cache_retention", "24h", "cannot be chosen"),
        ("temprature", 1, "did you mean temperature?"),
        ("suffix", "x", "not known"),
    ],
)
def test_what_chat_does_not_serve_is_refused_by_name(field, value, hint):
    problem = chat_problem(**{field: value})
    assert problem.param == field
    assert problem.message.startswith(f"{field} ") and hint in problem.message


def test_what_completions_do_not_serve_is_refused_by_name():
    assert completion_problem(suffix="x").param == "suffix"
    assert completion_problem(best_of=3, n=2).param == "best_of"
    assert completion_problem(best_of=2, n=2) is None


def test_every_field_of_openai_is_known():
    assert set(chat_params.CompletionCreateParamsBase.__annotations__) <= set(ChatRequest.model_fields)
    assert set(CompletionCreateParamsBase.__annotations__) <= set(CompletionRequest.model_fields)


@pytest.mark.parametrize(
    ("fields", "param", "hint"),
    [
        ({"n": "5"}, "n", '"5"; it must be a whole number'),
        ({"n": 5.0}, "n", "whole number"),
        ({"n": True}, "n", "whole number"),
        ({"temperature": True}, "temperature", "true; it must be a number"),
        ({"temperature": "1"}, "temperature", "number"),
        ({"temperature": float("nan")}, "temperature", "finite"),
        ({"temperature": 10**400}, "temperature", "number"),
        ({"stream": 1}, "stream", "true or false"),
        ({"stop": ["a", 5]}, "stop.1", "5; it must be a string"),
        ({"stop": 5}, "stop", "a string or a list"),
        ({"stop_token_ids": [1, 2.5]}, "stop_token_ids.1", "whole number"),
        ({"logit_bias": {"a": 1}}, "logit_bias.a", "no token id"),
        ({"logit_bias": {"5": True}}, "logit_bias.5", "true; it must be a number"),
        ({"logit_bias": [1]}, "logit_bias", "object"),
        ({"user": "\ud800"}, "user", "surrogate"),
        ({"priority": 5000}, "priority", "5000"),
        ({"timeout": 0}, "timeout", "greater than 0"),
        ({"stream_chunk": "line", "stream": True}, "stream_chunk", "'token', 'word' or 'sentence'"),
        ({"stream_options": {"usage": True}, "stream": True}, "stream_options.usage", "not known"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "'json_object'"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "missing"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "missing",
        ),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools.0.type", '"custom"; functions are the only kind'),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "pattern"),
        ({"tool_choice": "some"}, "tool_choice", "'required'"),
        ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.type", "allowed_tools"),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_at_its_place(fields, param, hint):
    problem = chat_problem(**fields)
    assert problem.param == param
    assert problem.message.startswith(f"{param} ") and hint in problem.message and "\n" not in problem.message


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": -1}, "temperature", "temperature is -1.0; it must be from 0 to 100"),
        ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; it must be a whole number at least 1"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens is 0; it must be"),
        ({"min_tokens": 5, "max_tokens": 2}, "min_tokens", "min_tokens is 5; it must be at most max_tokens, 2"),
        ({"logprobs": True, "top_logprobs": 101}, "top_logprobs", "top_logprobs is 101"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "logit_bias of token 5 is 101.0"),
        ({"stop": ""}, "stop", "stop holds an empty string"),
        ({"guided_regex": "a", "guided_grammar": "b"}, "guided_regex", "guided_regex and guided_grammar are given"),
        ({"speculation": {"tree_size": 999}}, "speculation.tree_size", "tree_size is 999; it must be"),
        ({"speculation": {"draft_sample_method": "coupled", "rejection_sample_method": "tree"}}, None, "use prob"),
    ],
)
def test_the_core_s_refusals_name_the_client_s_field(fields, param, message):
    problem = chat_problem(**fields)
    assert message in problem.message
    assert param is None or problem.param == param


def test_the_engine_s_refusals_name_the_client_s_field():
    asked = chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}})
    with pytest.raises(FieldError, match="^response_format .* cannot be used") as refused, client_words(asked):
        raise ConfigError("guided_json '{}' cannot be used: what is no")
    assert refused.value.param == "response_format"
    with pytest.raises(FieldError) as refused, client_words(completion()):
        raise PromptError("the prompt is empty")
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_chunk": "word"}, "stream_chunk"),
        ({"return_drafts": True}, "return_drafts"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER, WEATHER]}, "tools"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "rain"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [WEATHER], "guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}, "guided_json": "object"}, "guided_json"),
        (
            {"prediction": {"type": "content", "content": "x"}, "speculation": {"enabled": False}},
            "prediction",
        ),
        ({"speculation": {"enabled": False, "method": "ngram"}}, "speculation.method"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields, param):
    assert chat_problem(**fields).param == param


@pytest.mark.parametrize(
    ("message", "param", "hint"),
    [
        ({"role": "wizard", "content": SECRET}, "messages.0.role", '"wizard"'),
        ({"content": SECRET}, "messages.0.role", "missing"),
        ({"role": "user"}, "messages.0.content", "missing"),
        ({"role": "user", "content": {"text": SECRET}}, "messages.0.content", "a string or a list"),
        ({"role": "user", "content": []}, "messages.0.content", "at least one"),
        (
            {"role": "user", "content": [{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": {}}]},
            "messages.0.content.1.type",
            '"image_url"; this server reads parts of type text only',
        ),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages.0.content.0.text", "a string"),
        ({"role": "user", "content": f"{SECRET}\ud800"}, "messages.0.content", "surrogate"),
        ({"role": "user", "content": SECRET, "mood": SECRET}, "messages.0.mood", "not known"),
        ({"role": "assistant"}, "messages.0.content", "missing"),
        ({"role": "assistant", "content": "x", "audio": {"id": SECRET}}, "messages.0.audio", "text only"),
        ({"role": "tool", "content": SECRET}, "messages.0.tool_call_id", "missing"),
        (SECRET, "messages.0", "object"),
    ],
)
def test_a_wrong_message_is_refused_without_showing_it(message, param, hint):
    problem = problem_of(ChatRequest, {"messages": [message]})
    assert problem.param == param
    assert hint in problem.message and SECRET not in problem.message


@pytest.mark.parametrize("messages", [[], None, "x", {}])
def test_a_conversation_is_a_list_of_messages(messages):
    assert problem_of(ChatRequest, {"messages": messages}).param == "messages"


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ([], "prompt"),
        ([1, SECRET], "prompt.1"),
        ([[1, 2], [3, 4.5]], "prompt.1.1"),
        ([[1.5] * 100_000], "prompt.0.0"),
    ],
)
def test_a_wrong_prompt_is_refused_without_showing_it(prompt, param):
    problem = problem_of(CompletionRequest, {"prompt": prompt})
    assert problem.param == param and SECRET not in problem.message


def test_a_million_wrong_things_cost_one_error():
    body = {"prompt": "x", **{f"field {place}": 1 for place in range(100_000)}}
    assert problem_of(CompletionRequest, body).param == "field 0"


def test_messages_of_every_role_are_read():
    asked = chat(
        messages=[
            {"role": "system", "content": "a"},
            {"role": "developer", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {**USER, "name": "Ann"},
            {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [CALL]},
            {"role": "tool", "content": "sunny", "tool_call_id": "call_1"},
        ]
    )
    assert [message.text for message in asked.messages] == ["a", "bc", SECRET, None, "sunny"]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1, 2], [3]], [[1, 2], [3]])],
)
def test_prompts_are_one_or_many(prompt, prompts):
    assert prompts_of(completion(prompt=prompt)) == prompts


def test_no_tokens_are_written_only_where_the_prompt_is_echoed():
    assert completion_problem(max_tokens=0).param == "max_tokens"
    params = sampled(completion(max_tokens=0, echo=True, logprobs=0))
    assert (params.max_new_tokens, params.prompt_logprobs) == (1, 0)


def test_echo_alone_asks_for_no_log_probabilities():
    assert sampled(completion(echo=True)).prompt_logprobs is None


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5), ({"logprobs": False}, None), ({}, None)],
)
def test_log_probabilities_of_chat(fields, logprobs):
    assert sampled(chat(**fields)).logprobs == logprobs


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": {"type": "json_object"}}, "object"),
        ({"response_format": {"type": "text"}}, None),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "integer"}, "strict": True, "description": "y"},
                }
            },
            '{"type": "integer"}',
        ),
        ({"guided_json": {"type": "integer"}}, '{"type": "integer"}'),
        ({"guided_json": '{"type":"integer"}'}, '{"type":"integer"}'),
        ({"guided_json": "object"}, "object"),
    ],
)
def test_forms_become_schemas(fields, schema):
    assert sampled(chat(**fields)).guided_json == schema


def test_chat_may_write_as_much_as_the_limit_or_the_request_says():
    assert sampled(chat(), max_tokens=50).max_new_tokens == 50
    assert sampled(chat(max_completion_tokens=7), max_tokens=50).max_new_tokens == 7


NGRAM = SpeculationConfig(method="ngram", prompt_lookup_max=6)
EAGLE = SpeculationConfig(method="eagle", model="tiny-eagle", tree_size=20)


@pytest.mark.parametrize("default", [NGRAM, EAGLE, OFF, SpeculationConfig()])
@pytest.mark.parametrize("fields", [{}, {"speculation": {}}, {"speculation": {"enabled": True}}])
def test_a_request_that_chooses_nothing_speculates_as_the_server(default, fields):
    assert speculation_of(chat(**fields), default) == default


@pytest.mark.parametrize(
    ("field", "default", "config"),
    [
        ({"enabled": False}, EAGLE, OFF),
        ({"num_speculative_tokens": 3, "tree_size": 8}, NGRAM, None),
        ({"method": "suffix"}, EAGLE, SpeculationConfig(method="suffix")),
        ({"method": "eagle", "tree_size": 4}, EAGLE, replace(EAGLE, tree_size=4)),
        ({"method": "merged", "drafters": "ngram, suffix"}, NGRAM, None),
        ({"method": "ngram", "prompt_lookup_max": 9}, OFF, SpeculationConfig(method="ngram", prompt_lookup_max=9)),
    ],
)
def test_a_request_chooses_how_to_speculate(field, default, config):
    asked = speculation_of(completion(speculation=field), default)
    given = {key: value for key, value in field.items() if key != "enabled"}
    assert config is None or asked == config
    assert {key: getattr(asked, key) for key in given} == given


@pytest.mark.parametrize(
    ("field", "param"),
    [
        ({"model": "/etc/passwd"}, "speculation.model"),
        ({"method": "eagle"}, "speculation.method"),
        ({"method": "draft_model"}, "speculation.method"),
        ({"drafters": "suffix, draft_model:/tmp/x"}, "speculation.drafters"),
        ({"drafters": "suffix, eagle"}, "speculation.drafters"),
        ({"suffix_decoding_max_cached_requests": 5}, "speculation.suffix_decoding_max_cached_requests"),
        ({"self_search_seconds": 3600.0}, "speculation.self_search_seconds"),
        ({"vocabulary_matching": "strings"}, "speculation.vocabulary_matching"),
        ({"draft_weights": "int8"}, "speculation.draft_weights"),
        ({"draft_tensor_parallel_size": 2}, "speculation.draft_tensor_parallel_size"),
        ({"speculative_token_tree": "[" * 1000}, "speculation.speculative_token_tree"),
        ({"speculative_token_tree": "[[0], [1, 0]]"}, "speculation.speculative_token_tree"),
    ],
)
def test_what_a_request_may_not_choose_is_refused_by_name(field, param):
    assert completion_problem(speculation=field).param == param


def test_every_key_of_speculation_is_known_to_requests():
    keys = set(SpeculationConfig.__dataclass_fields__)
    assert keys | {"enabled"} == set(SpeculationField.model_fields)


PARTS = [{"type": "text", "text": "x = "}, {"type": "text", "text": "1"}]
PREDICTED = {"prediction": {"type": "content", "content": PARTS}}


@pytest.mark.parametrize(
    ("default", "config"),
    [
        (SpeculationConfig(), SpeculationConfig(prediction="x = 1")),
        (SpeculationConfig(drafters="suffix"), SpeculationConfig(drafters="suffix, prediction", prediction="x = 1")),
        (EAGLE, SpeculationConfig(method="prediction", prediction="x = 1")),
        (OFF, SpeculationConfig(method="prediction", prediction="x = 1")),
        (
            SpeculationConfig(method="merged", drafters="suffix, prediction"),
            SpeculationConfig(method="merged", drafters="suffix, prediction", prediction="x = 1"),
        ),
    ],
)
def test_a_prediction_is_drafted_from_whatever_the_server_does(default, config):
    assert speculation_of(chat(**PREDICTED), default) == config


def test_a_method_the_request_names_keeps_its_prediction():
    asked = speculation_of(chat(**PREDICTED, speculation={"method": "ngram"}), EAGLE)
    assert (asked.method, asked.prediction) == ("ngram", "x = 1")  # the engine says that ngram reads none


def test_token_requests():
    assert TokenizeRequest.model_validate({"prompt": ""}).prompt == ""
    assert TokenizeRequest.model_validate({"messages": [USER]}).messages[0].text == SECRET
    assert DetokenizeRequest.model_validate({"tokens": []}).tokens == []
    assert problem_of(TokenizeRequest, {}).param == "prompt"
    assert problem_of(TokenizeRequest, {"prompt": "a", "messages": [USER]}).param == "prompt"
    assert problem_of(DetokenizeRequest, {"tokens": [1, "2"]}).param == "tokens.1"


def ranges(kind: type) -> dict[str, dict]:
    """What the document says of each number, by field."""
    properties = kind.model_json_schema()["properties"]
    choices = {name: field.get("anyOf", [field]) for name, field in properties.items()}
    return {
        name: part
        for name, parts in choices.items()
        for part in parts
        if part.get("type") in ("number", "integer") and name != "best_of"
    }


def beside(name: str, value: float) -> dict:
    """A body that holds the value, and what it goes with."""
    together = {"top_logprobs": {"logprobs": True}, "min_tokens": {"max_tokens": DEFAULTS.max_tokens}}
    return {name: value, **together.get(name, {}), **({"echo": True} if value == 0 else {})}


def just_outside(part: dict) -> list[float]:
    step = 1 if part["type"] == "integer" else 1e-3
    low = [part["minimum"] - step] if "minimum" in part else [part["exclusiveMinimum"]]
    return low + ([part["maximum"] * (1 + 1e-12) + step] if part["type"] == "number" else [part.get("maximum", 0) + 1])


@pytest.mark.parametrize("name", sorted(ranges(CompletionRequest)))
def test_the_document_states_the_ranges_that_hold(name):
    part = ranges(CompletionRequest)[name]
    bounds = [part[key] for key in ("minimum", "maximum") if key in part]
    for value in bounds:
        assert completion_problem(**beside(name, value)) is None, value
    unbounded = {"repetition_penalty", "top_k"}  # as far as the core goes
    for value in just_outside(part)[: 1 if name in unbounded else 2]:
        assert completion_problem(**beside(name, value)) is not None, value


def test_the_document_can_be_written():
    for kind in (ChatRequest, CompletionRequest, TokenizeRequest, DetokenizeRequest):
        assert json.loads(json.dumps(kind.model_json_schema()))["additionalProperties"] is False
