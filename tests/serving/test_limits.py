"""Limits: what would take the engine's time or memory is refused before anybody compiles or encodes it."""

import json

import pytest
from request_bodies import USER, chat_problem, completion_problem, problem_of

from foredraft.core.errors import ConfigError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.regex_bounds import RegexSize, regex_size


def nested(levels: int) -> dict:
    schema: dict = {"type": "string"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def test_limits_are_checked_themselves():
    with pytest.raises(ConfigError, match="max_n is 0"):
        Limits(max_n=0)


@pytest.mark.parametrize(
    ("fields", "limits", "param"),
    [
        ({"max_tokens": 11}, {"max_tokens": 10}, "max_tokens"),
        ({"n": 3}, {"max_n": 2}, "n"),
        ({"prompt": ["a"] * 3}, {"max_prompts": 2}, "prompt"),
        ({"prompt": ["a"] * 3, "n": 2}, {"max_continuations": 5}, "prompt"),
        ({"stop": ["a", "b"]}, {"max_stop": 1}, "stop"),
        ({"stop_token_ids": [1, 2]}, {"max_stop": 1}, "stop_token_ids"),
        ({"bad_words": ["a", "b"]}, {"max_bad_words": 1}, "bad_words"),
        ({"stop": "äää"}, {"max_word_bytes": 5}, "stop"),
        ({"bad_words": ["a" * 6]}, {"max_word_bytes": 5}, "bad_words"),
        ({"logit_bias": {"1": 1, "2": 1}}, {"max_logit_bias": 1}, "logit_bias"),
        ({"speculation": {"prediction": "a" * 6}}, {"max_prediction_bytes": 5}, "speculation.prediction"),
        ({"guided_regex": "a" * 6}, {"max_regex_bytes": 5}, "guided_regex"),
        ({"guided_grammar": 'start: "a"'}, {"max_grammar_bytes": 5}, "guided_grammar"),
        ({"guided_json": {"type": "string"}}, {"max_schema_bytes": 5}, "guided_json"),
    ],
)
def test_more_than_a_limit_is_refused_and_as_much_is_not(fields, limits, param):
    problem = problem_of(CompletionRequest, {"prompt": "x", **fields}, **limits)
    (name, most), *_ = limits.items()
    assert problem.param == param and str(most) in problem.message
    assert problem_of(CompletionRequest, {"prompt": "x", **fields}, **{name: 30}) is None


@pytest.mark.parametrize(
    ("fields", "limits", "param"),
    [
        ({"messages": [USER] * 3}, {"max_messages": 2}, "messages"),
        ({"prediction": {"type": "content", "content": "abcdef"}}, {"max_prediction_bytes": 5}, "prediction"),
        (
            {"tools": [{"type": "function", "function": {"name": name}} for name in "abc"]},
            {"max_tools": 2},
            "tools",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": n, "parameters": {"a": 1}}} for n in "ab"]},
            {"max_tools_bytes": 10},
            "tools",
        ),
    ],
)
def test_limits_of_chat(fields, limits, param):
    body = {"messages": [USER], **fields}
    assert problem_of(ChatRequest, body, **limits).param == param
    assert problem_of(ChatRequest, body) is None


COMPLEX_SCHEMAS = {
    "deep": nested(100),
    "wide": {"enum": list(range(5000))},
    "long": {"const": "a" * 70_000},
    "counts": {"type": "array", "maxItems": 1_000_000},
    "pattern": {"type": "string", "pattern": "(a{1000}){1000}"},
    "pattern of keys": {"patternProperties": {"a{1000000}": {}}},
    "white space": {"x-guidance": {"whitespace_pattern": " {0,1000000}"}},
    "divisor": {"type": "integer", "multipleOf": 1_000_003},
    "divisors": {"allOf": [{"multipleOf": 1009}, {"multipleOf": 1013}]},
    "elsewhere": {"$ref": "http://127.0.0.1/schema.json"},
    "a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "half a character": {"const": "\ud800"},
    "half a key": {"properties": {"\ud800": {}}},
    "no number": {"const": float("nan")},
}


@pytest.mark.parametrize("name", COMPLEX_SCHEMAS)
def test_a_complex_schema_is_refused_wherever_it_stands(name):
    schema = COMPLEX_SCHEMAS[name]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool = {"type": "function", "function": {"name": "x", "parameters": schema}}
    assert chat_problem(response_format=form).param == "response_format.json_schema.schema"
    assert chat_problem(tools=[tool]).param == "tools.0.function.parameters"
    assert completion_problem(guided_json=schema).param == "guided_json"
    assert completion_problem(guided_json=json.dumps(schema)).param == "guided_json"
    assert completion_problem(guided_grammar=f"start: %json {json.dumps(schema)}").param == "guided_grammar"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/node", "$defs": {"node": {"properties": {"next": {"$ref": "#/$defs/node"}}}}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://example.org/x", "type": "object"},
        {"properties": {"$ref": {"type": "string"}, "maxItems": {"const": 5_000_000}}},
        {"type": "string", "maxLength": 65_535, "pattern": r"^\d{4}-\d{2}-\d{2}$"},
        {"type": "number", "multipleOf": 0.01},
        nested(20),
    ],
)
def test_a_usual_schema_is_accepted(schema):
    assert completion_problem(guided_json=schema) is None
    assert completion_problem(guided_grammar=f"start: %json {json.dumps(schema)}") is None


@pytest.mark.parametrize("text", ["{", "[" * 60_000, '{"a": ' + "9" * 5000 + "}", "nul"])
def test_a_schema_that_is_no_json_is_refused(text):
    assert completion_problem(guided_json=text).param == "guided_json"


@pytest.mark.parametrize(
    "pattern",
    ["a{1000000}", "(a{1000}b){1000}", "((((a{20}){20}){20}){20})", "a{99999999999999}", "(" * 40, "a{70000,}"],
)
def test_a_complex_regular_expression_is_refused(pattern):
    assert completion_problem(guided_regex=pattern).param == "guided_regex"


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", RegexSize(0, 3)),
        ("a{5}b", RegexSize(0, 6)),
        ("a{2,5}", RegexSize(0, 5)),
        ("a{ 2 , 5 }", RegexSize(0, 5)),
        ("a{7,}", RegexSize(0, 7)),
        ("a{3}{4}", RegexSize(0, 12)),
        ("(a{10}b){20}", RegexSize(1, 220)),
        ("((a)|b)", RegexSize(2, 3)),
        ("[a-z{9}]{4}", RegexSize(0, 4)),
        ("[]{9}]{4}", RegexSize(0, 4)),
        (r"\{9\}", RegexSize(0, 3)),
        (r"\p{Greek}{3}", RegexSize(0, 3)),
        (r"\x{41}{3}", RegexSize(0, 3)),
        ("[a", RegexSize(0, 1)),
        ("a)", RegexSize(0, 2)),
    ],
)
def test_the_size_of_a_regular_expression(pattern, size):
    assert regex_size(pattern) == size


@pytest.mark.parametrize("pattern", ["[" * 4000, r"\p{" * 1300, "{" * 4000, "(" * 4000, "a{1," * 1000])
def test_patterns_made_to_be_slow_are_measured_at_once(pattern):
    regex_size(pattern)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: x{1000000}\nx: "a"',
        'start: x{0,1000000}\nx: "a"',
        'start: x{ 0 , 1000000 }\nx: "a"',
        'start: x~1000000\nx: "a"',
        'start: x~1..1000000\nx: "a"',
        "start: /a{1000000}/",
        "start: " + "(" * 100 + '"a"' + ")" * 100,
        'start: %json [")",' * 5000,
        "start: %json " + '{"]": ' * 5000 + "1" + "}" * 5000,
    ],
)
def test_a_complex_grammar_is_refused(grammar):
    assert completion_problem(guided_grammar=grammar).param == "guided_grammar"


def test_a_usual_grammar_is_accepted():
    grammar = 'start: item{1,5} (" " item)~3\nitem: /[a-z]{2,10}/ | %json {"type": "integer"}\n%ignore / {1,3}/'
    assert completion_problem(guided_grammar=grammar) is None
