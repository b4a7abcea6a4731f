"""Tool calls told from text, whole and streamed, in every format, valid and broken; the grammars that force them."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reply_doubles import BOTH, CALLS, FORMATS, TEMPLATES, TOOLS, tokenizer_for, vocabulary_of

from foredraft.core.sampling_params import SamplingParams
from foredraft.sampling.grammar import grammar_for
from foredraft.serving.chat.call_parts import CallPart, ContentPart, ToolCall, assemble
from foredraft.serving.chat.json_scanner import JsonScanner
from foredraft.serving.chat.marked_text import MarkedText
from foredraft.serving.chat.tool_calls import HERMES, LLAMA, MISTRAL, XML, format_of, tool_format
from foredraft.serving.chat.tool_grammar import tool_grammar
from foredraft.serving.protocol.tools import Tool

TOOL_LIST = """{% for tool in tools %}{"name": "{{ tool.name }}", "parameters": {}}{% endfor %}"""  # teaches no call
WEATHER = ToolCall(name="weather", arguments='{"city": "Kyōto", "days": 2}')
NOW = ToolCall(name="now", arguments="{}")
FRAGMENTS = [
    *'{}[]:,"; \n\\<>',
    "\\u00e9",
    "\\n",
    "hello",
    "1.5e3",
    "-",
    "true",
    "nul",
    '"city"',
    "Kyōto",
    '"name"',
    '"name": "weather"',
    '"name": "other"',
    '"arguments"',
    '"parameters": {',
    '{"name": "now", "arguments": {',
    '{"name": "weather", "parameters": ',
    '{"city": "x", "days": [1, 2]}',
    '}}</tool_call>\n<tool_call>{"name": "now"',
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "[TOOL_CALLS][",
    "[ARGS]",
    "weather",
    "now",
    "<|python_tag|>",
    "<function=",
    "<function=now>",
    "</function>",
    "<parameter=days>",
    "</parameter>",
    *[call for calls in CALLS.values() for call in calls],
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=3), max_size=12).map("".join)


def known(format: str):
    return format_of(TEMPLATES[format])


def streamed(format, pieces: list[str]) -> list:
    parser = format.stream(TOOLS)
    return [part for piece in pieces for part in parser.push(piece)] + parser.finish()


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({place % (len(text) + 1) for place in places} | {len(text)})
    return [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@pytest.mark.parametrize("format", FORMATS)
def test_formats_are_known_by_their_templates(format):
    assert known(format).name == format


@pytest.mark.parametrize(
    "template", [TEMPLATES["none"], "", "{{ tools }}", "{{ tools }}<tool_call>name<arg_key>", TOOL_LIST]
)
def test_other_templates_have_no_known_format(template):
    assert format_of(template) is None


@pytest.mark.parametrize("format", FORMATS)
def test_calls_are_told(format):
    weather, now = CALLS[format]
    assert known(format).parse(weather, TOOLS) == ("", [WEATHER])
    assert known(format).parse(now, TOOLS) == ("", [NOW])
    assert known(format).parse(f"\n{BOTH[format]}\n", TOOLS) == ("", [WEATHER, NOW])
    assert known(format).parse("Just < text [ {\n", TOOLS) == ("Just < text [ {\n", [])


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "llama"])
def test_text_around_calls_is_content(format):
    weather, now = CALLS[format]
    assert known(format).parse(f"Let me see.\n\n{weather} Done. {now} \n", TOOLS) == (
        "Let me see. Done.",
        [WEATHER, NOW],
    )


def test_ids_are_random():
    _, calls = known("hermes").parse(BOTH["hermes"] * 2, TOOLS)
    assert len({call.id for call in calls}) == 4
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in calls)


def test_tools_may_be_given_as_the_request_has_them():
    tools = [Tool.model_validate(tool) for tool in TOOLS]
    assert known("xml").parse(CALLS["xml"][0], tools) == ("", [WEATHER])


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=150, deadline=None)
@given(text=TEXTS, places=st.lists(st.integers(0, 400), max_size=12))
def test_streamed_is_as_whole(format, text, places):
    content, calls = assemble(streamed(known(format), cut(text, places)))
    assert (content, calls) == known(format).parse(text, TOOLS)
    assert (content, calls) == assemble(streamed(known(format), list(text)))
    if not calls:
        assert content == text


@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_nothing_is_told_before_it_was_written(format, text):
    parser, places = known(format).stream(TOOLS), [0]
    for number, character in enumerate(text):
        parts = parser.push(character)
        places += [part.end for part in parts]
        assert all(part.end <= number + 1 for part in parts)
    assert places == sorted(places)


def test_arguments_are_streamed_as_they_come():
    parts = streamed(HERMES, list(CALLS["hermes"][0]))
    assert parts[0] == CallPart(index=0, end=parts[0].end, id=parts[0].id, name="weather")
    assert [part.arguments for part in parts[1:]] == list(WEATHER.arguments)
    assert all(part.id is None and part.name is None for part in parts[1:])


def test_parameters_in_tags_are_streamed_one_by_one():
    parts = streamed(XML, list(CALLS["xml"][0]))
    assert [part.arguments for part in parts] == ["", '{"city": "Kyōto"', ', "days": 2', "}"]


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "now", "arguments": 3}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>\n{"name" "now"}</tool_call>',
        "a <tool_call> b </tool_call>\n",
        '<tool_call>{"name": "no',
        "<tool_c",
        " \n",
    ],
)
def test_what_is_no_call_is_content_as_it_stands(text):
    assert HERMES.parse(text, TOOLS) == (text, [])


@pytest.mark.parametrize(
    ("text", "content", "arguments"),
    [
        ('<tool_call>{"name": "now", "arguments": {"a": 1', "", '{"a": 1'),
        ('<tool_call>{"name": "now", "arguments": {"a": x}}</tool_call>', "x}}</tool_call>", '{"a": '),
        ('<tool_call>{"name": "now", "arguments": {}} and so on', " and so on", "{}"),
        ('<tool_call>{"name": "now", "arguments": {}}</tool', "", "{}"),
        ('<tool_call>{"name": "now", "arguments": {}, "id": "7"}</tool_call>', "", "{}"),
        ('<tool_call>{"arguments": {"a":1}, "name": "now"}</tool_call>', "", '{"a": 1}'),
        ('<tool_call>{"name": "now", "arguments": "{\\"a\\":1}"}</tool_call>', "", '{"a":1}'),
        ('<tool_call>{"type": "function", "name": "now", "parameters": {}}</tool_call>', "", "{}"),
        ('<tool_call> <tool_call>{"name": "now", "arguments": {}}</tool_call>', "<tool_call>", "{}"),
    ],
)
def test_odd_and_broken_calls(text, content, arguments):
    assert HERMES.parse(text, TOOLS) == (content, [ToolCall(name="now", arguments=arguments)])


def test_llama_calls_begin_the_text():
    assert LLAMA.parse("See: " + CALLS["llama"][0], TOOLS) == ("See: " + CALLS["llama"][0], [])
    assert LLAMA.parse("<|python_tag|>" + CALLS["llama"][0], TOOLS) == ("", [WEATHER])
    assert LLAMA.parse('{"answer": 42}', TOOLS) == ('{"answer": 42}', [])


def test_mistral_lists_may_break_off():
    text = '[TOOL_CALLS] [{"name": "now", "arguments": {}}, {"name": '
    assert MISTRAL.parse(text, TOOLS) == (', {"name": ', [NOW])


@pytest.mark.parametrize(
    ("value", "schema", "arguments"),
    [
        ("5", {"type": "string"}, '"5"'),
        ("5", {"type": "integer"}, "5"),
        ("5", {"type": "number"}, "5"),
        ("5", {}, "5"),
        ("five", {"type": "integer"}, '"five"'),
        ("null", {"type": ["string", "null"]}, "null"),
        ("5", {"type": ["string", "null"]}, '"5"'),
        ('{"a": [1]}', {"type": "object"}, '{"a": [1]}'),
        ("NaN", {"type": "number"}, '"NaN"'),
        ("true", {"anyOf": [{"type": "boolean"}, {"type": "string"}]}, "true"),
        ("a\nb", {"type": "string"}, '"a\\nb"'),
        ("C", {"enum": ["C", "F"]}, '"C"'),
        ("7", True, "7"),
    ],
)
def test_values_in_tags_become_what_the_schema_says(value, schema, arguments):
    tools = [{"function": {"name": "f", "parameters": {"properties": {"a": schema}}}}]
    text = f"<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>"
    assert XML.parse(text, tools) == ("", [ToolCall(name="f", arguments=f'{{"a": {arguments}}}')])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(max_examples=50)
@given(value=st.dictionaries(st.text(), JSON), ascii=st.booleans(), indent=st.none() | st.integers(0, 2))
def test_the_scanner_reads_every_object_to_its_end(value, ascii, indent):
    text = json.dumps(value, ensure_ascii=ascii, indent=indent)
    scanner = JsonScanner()
    assert scanner.push(text + "} more") == len(text) and scanner.depth == 0 and not scanner.failed


@settings(max_examples=300)
@given(text=st.lists(st.sampled_from(['"a"', *'{}[]:,"0123.-+eE \n\\', "true", "null", "\\u12aF"]), max_size=9))
def test_the_scanner_is_as_strict_as_json(text):
    whole = "{" + "".join(text)
    scanner = JsonScanner()
    complete = scanner.push(whole) == len(whole) and scanner.depth == 0
    try:
        json.loads(whole)
    except ValueError:
        assert not complete
    else:
        assert complete or whole != whole.rstrip()


def accepted(format, text: str, grammar: str, tokenizer) -> bool:
    """Whether the grammar lets a model write `text` and end there."""
    state = grammar_for(SamplingParams(guided_grammar=grammar), tokenizer, vocabulary_of(tokenizer))
    tokens = tokenizer.encode(text, add_special_tokens=False)
    forbidden = state.forbidden(tokens)
    return forbidden is not None and not forbidden[tokenizer.eos_token_id]


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_a_required_call_is_forced(format, marked):
    tokenizer = tokenizer_for(format, marked=marked)
    known = tool_format(tokenizer)
    weather, now = CALLS[format]
    grammar = tool_grammar(known, TOOLS, "required")
    texts = [weather, now, "hello", "", f"hello {weather}", weather.replace("days", "years"), weather[:-2]]
    assert [accepted(known, text, grammar, tokenizer) for text in texts] == [True, True, *[False] * 5]
    assert accepted(known, BOTH[format], grammar, tokenizer) == (format != "llama")
    alone = tool_grammar(known, TOOLS, "required", False)
    assert accepted(known, weather, alone, tokenizer) and not accepted(known, BOTH[format], alone, tokenizer)


@pytest.mark.parametrize("format", FORMATS)
def test_a_named_call_is_forced(format):
    tokenizer = tokenizer_for(format, marked=True)
    known = tool_format(tokenizer)
    weather, now = CALLS[format]
    grammar = tool_grammar(known, TOOLS, {"type": "function", "function": {"name": "now"}}, True)
    texts = [now, weather, BOTH[format], "hello"]
    assert [accepted(known, text, grammar, tokenizer) for text in texts] == [True, False, False, False]


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_one_call_at_most_behind_free_text(format, marked):
    tokenizer = tokenizer_for(format, marked=marked)
    known = tool_format(tokenizer)
    weather, _ = CALLS[format]
    grammar = tool_grammar(known, TOOLS, "auto", False)
    texts = ["hello", "", weather, BOTH[format], weather.replace("2", "true")]
    assert [accepted(known, text, grammar, tokenizer) for text in texts] == [True, True, True, False, False]
    assert format == "llama" or accepted(known, f"a < b\n{weather}", grammar, tokenizer)


def test_strict_arguments_are_bound_behind_free_text():
    tokenizer = tokenizer_for("hermes")
    strict = [{**TOOLS[0], "function": TOOLS[0]["function"] | {"strict": True}}, TOOLS[1]]
    grammar = tool_grammar(HERMES, strict, None)
    texts = ["hello", BOTH["hermes"], CALLS["hermes"][0].replace("2", "true")]
    assert [accepted(HERMES, text, grammar, tokenizer) for text in texts] == [True, True, False]


@pytest.mark.parametrize(("tools", "choice"), [(TOOLS, None), (TOOLS, "auto"), (TOOLS, "none"), ([], "auto")])
def test_a_free_model_has_no_grammar(tools, choice):
    assert tool_grammar(HERMES, tools, choice, choice != "none") is None


@pytest.mark.parametrize("format", FORMATS)
def test_forced_calls_are_read_back(format):
    """What the grammar lets through is a call for the parser, of every kind of value."""
    properties = {
        "text": {"type": "string"},
        "unit": {"enum": ["C", "F"]},
        "mixed": {"enum": ["C", 1]},
        "some": {"$ref": "#/$defs/list"},
    }
    schema = {"properties": properties, "required": list(properties), "$defs": {"list": {"items": {"type": "null"}}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    value = {"text": "</a> b\n", "unit": "F", "mixed": 1, "some": [None, None]}
    tokenizer = tokenizer_for(format)
    known = tool_format(tokenizer)
    texts = {
        "xml": "<tool_call>\n<function=f>\n<parameter=text>\n</a> b\n\n</parameter>\n"
        "<parameter=unit>\nF\n</parameter>\n<parameter=mixed>\n1\n</parameter>\n"
        "<parameter=some>\n[null, null]\n</parameter>\n</function>\n</tool_call>",
        "hermes": '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>',
        "llama": '{"name": "f", "parameters": %s}',
        "mistral": '[TOOL_CALLS][{"name": "f", "arguments": %s}]',
        "mistral-args": "[TOOL_CALLS]f[ARGS]%s",
    }
    text = texts[format].replace("%s", json.dumps(value))
    assert accepted(known, text, tool_grammar(known, tools, "required"), tokenizer)
    [call] = known.parse(text, tools)[1]
    assert json.loads(call.arguments) == value


def test_hidden_markers_are_put_back_where_they_stood():
    marked = MarkedText({7: "[M]"})
    assert marked.push("ab", [1, 7, 2], ["ab", "", "cd"]) == "ab[M]"
    assert marked.push("", [7], [""]) == ""
    assert marked.push("c", [], []) == "c"
    assert marked.push("de", [3], ["e"]) == "d[M]e"
    assert MarkedText({7: "[M]"}).push("", [7], [""]) == "[M]"


def test_special_markers_are_found_in_the_vocabulary():
    format = tool_format(tokenizer_for("mistral", marked=True))
    assert format.hidden == {"[TOOL_CALLS]", "[ARGS]"} and format.short_ids
    shown = tool_format(tokenizer_for("hermes", marked=True))
    assert shown.ids.keys() == {"<tool_call>", "</tool_call>"} and not shown.hidden
    assert replace(shown, ids={}) == tool_format(tokenizer_for("hermes"))


def test_content_comes_at_once_where_no_call_can_begin():
    parser = HERMES.stream(TOOLS)
    assert parser.push("a <b") == [ContentPart(text="a <b", end=4)]
    assert parser.push(" <tool") == []
    assert parser.push("s>") == [ContentPart(text=" <tools>", end=12)]
