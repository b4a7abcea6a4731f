"""Conversations through chat templates: what the model is shown, and what is refused by name."""

import pytest
from reply_doubles import CALLS, FORMATS, TOOLS, tokenizer_for
from transformers import PreTrainedTokenizerFast

from foredraft.core.errors import PromptError
from foredraft.core.speculation_config import OFF
from foredraft.engine.engine import Engine
from foredraft.model.loading import find_checkpoint, load_tokenizer
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.serving.chat.template import render
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest

HELLO = {"role": "user", "content": "Hello"}
CALLED = {
    "role": "assistant",
    "tool_calls": [
        {
            "id": "call_abcdefghijklmnopqrstuvwx",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Kyōto", "days": 2}'},
        }
    ],
}
TOLD = {"role": "tool", "tool_call_id": "call_abcdefghijklmnopqrstuvwx", "content": "rain"}


def engine_with(tokenizer: PreTrainedTokenizerFast | None) -> Engine:
    size = len(tokenizer) if tokenizer is not None else 4
    target = ScriptedTarget(lambda _: [0.0] * size, vocabulary=size)
    target.tokenizer = tokenizer
    return Engine(target, speculation=OFF)


def shown(format: str, messages: list[dict], **fields) -> str:
    """The prompt as the model reads it."""
    tokenizer = tokenizer_for(format)
    return tokenizer.decode(render(engine_with(tokenizer), asked(messages, **fields)))


def asked(messages: list[dict], **fields) -> ChatRequest:
    return ChatRequest.model_validate({"messages": messages, **fields})


def test_messages_go_through_the_template():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    assert shown("none", messages) == "<|system|>Be brief.<|end|><|user|>Hello<|end|><|assistant|>"


def test_a_developer_is_called_system_where_the_template_knows_none():
    assert shown("none", [{"role": "developer", "content": "x"}]) == "<|system|>x<|end|><|assistant|>"
    tokenizer = tokenizer_for("none")
    knowing = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer, chat_template="{# developer #}" + tokenizer.chat_template
    )
    request = asked([{"role": "developer", "content": "x"}])
    assert knowing.decode(render(engine_with(knowing), request)).startswith("<|developer|>")


def test_the_embedded_model_reads_what_its_engine_says():
    tokenizer = load_tokenizer(find_checkpoint("tiny"))
    engine = engine_with(tokenizer)
    assert render(engine, asked([HELLO])) == engine.chat([HELLO])
    with pytest.raises(FieldError, match="tools") as refusal:
        render(engine, asked([HELLO], tools=TOOLS))
    assert refusal.value.param == "tools"


@pytest.mark.parametrize("format", FORMATS)
def test_tools_and_earlier_calls_are_shown(format):
    text = shown(format, [HELLO, CALLED, TOLD], tools=TOOLS)
    assert '"name": "weather"' in text and "Tells the weather." in text
    assert text.endswith("<|tool|>rain<|end|><|assistant|>")
    written = CALLS[format][0].removesuffix("}]")
    assert f"<|assistant|>{written}" in text.replace("\\u014d", "ō")


def test_tools_are_hidden_where_none_may_be_called():
    assert shown("hermes", [HELLO], tools=TOOLS, tool_choice="none") == shown("hermes", [HELLO])
    assert "rain" in shown("hermes", [HELLO, CALLED, TOLD])


def test_ids_fit_templates_that_take_nine_characters():
    assert '"id": "pqrstuvwx"' in shown("mistral", [HELLO, CALLED, TOLD])


@pytest.mark.parametrize(
    ("messages", "param"),
    [([HELLO, TOLD], "messages.1.role"), ([HELLO, CALLED], "messages.1.tool_calls")],
)
def test_calls_are_refused_by_templates_without_them(messages, param):
    with pytest.raises(FieldError, match="no known way to call tools") as refusal:
        shown("none", messages)
    assert refusal.value.param == param


@pytest.mark.parametrize("arguments", ["{", "[]", "3"])
def test_arguments_must_be_an_object(arguments):
    function = {"name": "weather", "arguments": arguments}
    called = CALLED | {"tool_calls": [CALLED["tool_calls"][0] | {"function": function}]}
    with pytest.raises(FieldError) as refusal:
        shown("hermes", [HELLO, called])
    assert refusal.value.param == "messages.1.tool_calls.0.function.arguments"


def test_calls_without_arguments_and_without_calls():
    function = {"name": "now", "arguments": ""}
    called = CALLED | {"tool_calls": [CALLED["tool_calls"][0] | {"function": function}]}
    assert CALLS["hermes"][1] in shown("hermes", [HELLO, called])
    empty = {"role": "assistant", "content": "Hi", "tool_calls": []}
    assert "<|assistant|>Hi<|end|>" in shown("none", [HELLO, empty])


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system please') }}", "no system please"),
        ("{{ messages[0].content + 1 }}", "refuses the messages"),
        ("{{ messages[7].content.x }}", "refuses the messages"),
    ],
)
def test_what_the_template_refuses_is_said(template, words):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_for("none").backend_tokenizer, chat_template=template
    )
    with pytest.raises(PromptError, match=words):
        render(engine_with(tokenizer), asked([HELLO]))


def test_a_target_without_a_template_has_no_chat():
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer_for("none").backend_tokenizer)
    for tokenizer in (plain, None):
        with pytest.raises(PromptError, match="no chat template"):
            render(engine_with(tokenizer), asked([HELLO]))


def test_tools_may_have_a_template_of_their_own():
    templates = {"default": "plain", "tool_use": tokenizer_for("hermes").chat_template}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer_for("hermes").backend_tokenizer, chat_template=templates
    )
    engine = engine_with(tokenizer)
    assert tokenizer.decode(render(engine, asked([HELLO]))) == "plain"
    assert "Tells the weather." in tokenizer.decode(render(engine, asked([HELLO], tools=TOOLS)))
