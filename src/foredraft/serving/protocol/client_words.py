"""The engine's refusals in the client's words: they name the field that was sent."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from foredraft.core.errors import ConfigError, PromptError
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.protocol.speculation_field import SpeculationField

WORD = re.compile(r"[a-z][a-z_]*")
SPECULATION_KEYS = set(SpeculationField.model_fields) - {"enabled"}


@contextmanager
def client_words(request: ChatRequest | CompletionRequest) -> Iterator[None]:
    """Turn a `ConfigError` or `PromptError` from within into a `FieldError` that names a field of `request`."""
    try:
        yield
    except FieldError:
        raise
    except PromptError as error:
        raise FieldError(str(error), param="messages" if isinstance(request, ChatRequest) else "prompt") from None
    except ConfigError as error:
        own = own_names(request)
        message = WORD.sub(lambda word: own.get(word[0], word[0]), str(error))
        raise FieldError(message, param=named_field(message, request)) from None


def own_names(request: ChatRequest | CompletionRequest) -> dict[str, str]:
    """What the engine calls a field, and what the client has called it."""
    names = {"max_new_tokens": request.tokens_field, "min_new_tokens": "min_tokens", "prompt_logprobs": "logprobs"}
    if isinstance(request, ChatRequest):
        names["logprobs"] = "top_logprobs"
        if request.form is not None:
            names["guided_json"] = "response_format"
    return names


def named_field(message: str, request: ChatRequest | CompletionRequest) -> str | None:
    """The first field of the request that a message names; none where it names none."""
    fields, speculation = type(request).model_fields, request.speculation
    for word in WORD.findall(message):
        if word in SPECULATION_KEYS and speculation is not None and getattr(speculation, word) is not None:
            return f"speculation.{word}"
        if word in fields and getattr(request, word) is not None:
            return word
    return None
