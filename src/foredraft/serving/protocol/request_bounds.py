"""Whether a request asks for no more than the server gives to one."""

from collections.abc import Sized
from typing import Any

from foredraft.core.errors import ConfigError, require
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.protocol.grammar_bounds import check_grammar
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.regex_bounds import check_regex
from foredraft.serving.protocol.response_format import JsonSchemaFormat
from foredraft.serving.protocol.schema_bounds import check_schema, parsed_schema, schema_bytes

ANY_OBJECT = "object"  # a schema that any JSON object fulfils

Request = ChatRequest | CompletionRequest


def check_request(request: Request, limits: Limits) -> None:
    """Raise `ConfigError` naming the field and the limit where the request asks for more than `limits` allow."""
    check_counts(request, limits)
    check_texts(request, limits)
    check_guides(request, limits)


def check_counts(request: Request, limits: Limits) -> None:
    """Hold what can be counted within the limits."""
    at_most(request.tokens_field, getattr(request, request.tokens_field) or 0, limits.max_tokens)
    at_most("n", request.n or 1, limits.max_n)
    hold_at_most("stop", request.stops, limits.max_stop)
    hold_at_most("stop_token_ids", request.stop_token_ids, limits.max_stop)
    hold_at_most("bad_words", request.bad_words, limits.max_bad_words)
    hold_at_most("logit_bias", request.logit_bias, limits.max_logit_bias)
    if isinstance(request, ChatRequest):
        hold_at_most("messages", request.messages, limits.max_messages)
        hold_at_most("tools", request.tools, limits.max_tools)
    else:
        hold_at_most("prompt", request.prompts, limits.max_prompts)
        several = len(request.prompts) * (request.n or 1)
        most = limits.max_continuations
        require(several <= most, f"prompt and n ask for {several} continuations; one request may ask for {most}")


def at_most(name: str, value: int, most: int) -> None:
    require(value <= most, f"{name} is {value}; it must be at most {most}")


def hold_at_most(name: str, values: Sized | None, most: int) -> None:
    size = len(values or ())
    require(size <= most, f"{name} holds {size} entries; it may hold {most}")


def check_texts(request: Request, limits: Limits) -> None:
    """Hold texts that the engine reads between its steps within the limits."""
    for name, words in (("stop", request.stops), ("bad_words", request.bad_words or ())):
        longest = max((len(word.encode()) for word in words), default=0)
        most = limits.max_word_bytes
        require(longest <= most, f"{name} holds a string of {longest} bytes; one may have {most}")
    chat = request.prediction.text if isinstance(request, ChatRequest) and request.prediction else ""
    own = request.speculation.prediction if request.speculation else None
    size, most = len((own or chat).encode()), limits.max_prediction_bytes
    require(size <= most, f"prediction has {size} bytes; it may have {most}")


def check_guides(request: Request, limits: Limits) -> None:
    """Hold the complexity of schemas, regular expressions and grammars within the limits."""
    if isinstance(request.guided_json, str) and request.guided_json != ANY_OBJECT:
        check_schema("guided_json", parsed_schema("guided_json", request.guided_json, limits), limits)
    elif isinstance(request.guided_json, dict):
        check_schema("guided_json", request.guided_json, limits)
    if request.guided_regex is not None:
        check_regex("guided_regex", request.guided_regex, limits)
    if request.guided_grammar is not None:
        check_grammar("guided_grammar", request.guided_grammar, limits)
    if isinstance(request, ChatRequest):
        check_chat_schemas(request, limits)


def check_chat_schemas(request: ChatRequest, limits: Limits) -> None:
    if isinstance(request.response_format, JsonSchemaFormat):
        own = request.response_format.json_schema.definition
        check_inner("response_format.json_schema.schema", own, limits)
    schemas = [tool.function.parameters or {} for tool in request.tools or ()]
    for index, schema in enumerate(schemas):
        check_inner(f"tools.{index}.function.parameters", schema, limits)
    size, most = sum(map(schema_bytes, schemas)), limits.max_tools_bytes
    require(size <= most, f"tools have schemas of {size} bytes together; they may have {most}")


def check_inner(path: str, schema: dict[str, Any], limits: Limits) -> None:
    """Hold a schema that lies deeper in the request within the limits, and name it by its path."""
    try:
        check_schema(path, schema, limits)
    except ConfigError as error:
        raise FieldError(str(error), param=path) from None
