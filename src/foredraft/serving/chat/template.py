"""A conversation as the target's chat template writes it."""

import json

from jinja2 import TemplateError

from foredraft.core.errors import PromptError, require
from foredraft.engine.engine import Engine
from foredraft.serving.chat.tool_calls import ToolFormat, plain, tool_format
from foredraft.serving.errors import FieldError

SHORT_ID = 9  # characters of a call's id where a template insists on it


def render(engine: Engine, request) -> list[int]:
    """Token ids of a `ChatRequest`'s conversation with its tools, up to where the assistant's answer begins.

    Raises `PromptError` where the target has no chat template or the template refuses the conversation, `FieldError`
    for tools and messages about tool calls where the template has no known way to write calls.
    """
    tokenizer = engine.target.tokenizer
    has = tokenizer is not None and tokenizer.chat_template
    require(bool(has), f"{engine.target.name} has no chat template; use /v1/completions", PromptError)
    format = tool_format(tokenizer)
    tools = [plain(tool) for tool in request.tools or () if request.tool_choice != "none"]
    if tools and format is None:
        raise FieldError(f"tools are given, and {no_calls(engine)}; leave them out", param="tools")
    template = tokenizer.get_chat_template(tools=tools or None)
    messages = [
        written_message(engine, dict(plain(message)), index, template, format)
        for index, message in enumerate(request.messages)
    ]
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools or None, add_generation_prompt=True, tokenize=False, chat_template=template
        )
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise PromptError(f"the chat template of {engine.target.name} refuses the messages: {line}") from None
    return engine.encode(tokenizer(text, add_special_tokens=False)["input_ids"])


def no_calls(engine: Engine) -> str:
    return f"the chat template of {engine.target.name} has no known way to call tools"


def written_message(engine: Engine, message: dict, index: int, template: str, format: ToolFormat | None) -> dict:
    """A message in the form templates expect: contents as one string, arguments as objects."""
    calls, place = message.pop("tool_calls", None), f"messages.{index}"
    if (calls or message["role"] == "tool") and format is None:
        field = "tool_calls" if calls else "role"
        raise FieldError(f"a message is about tool calls, and {no_calls(engine)}", param=f"{place}.{field}")
    content = message.get("content") or ""
    message["content"] = content if isinstance(content, str) else "".join(part["text"] for part in content)
    if message["role"] == "developer" and "developer" not in template:
        message["role"] = "system"  # its older name
    if "tool_call_id" in message:
        message["tool_call_id"] = written_id(message["tool_call_id"], format)
    if calls:
        places = [f"{place}.tool_calls.{number}" for number in range(len(calls))]
        message["tool_calls"] = [written_call(*call, format) for call in zip(calls, places, strict=True)]
    return message


def written_call(call: dict, place: str, format: ToolFormat) -> dict:
    function = call["function"]
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise FieldError("arguments must be the text of a JSON object", param=f"{place}.function.arguments")
    return call | {"id": written_id(call["id"], format), "function": function | {"arguments": arguments}}


def written_id(id: str, format: ToolFormat) -> str:
    """A call's id as the template takes it: the end of ours is as random as the whole."""
    return id[-SHORT_ID:] if format.short_ids else id
