"""From a request to what the engine is asked: prompts, sampling parameters and a way to speculate."""

import json
from dataclasses import replace
from typing import Any

from foredraft.core.drafter_names import drafter_names
from foredraft.core.errors import require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import AUTO, OFF, SpeculationConfig
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.client_words import client_words
from foredraft.serving.protocol.completion_request import DEFAULT_TOKENS, CompletionRequest
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.request_bounds import ANY_OBJECT, check_request
from foredraft.serving.protocol.response_format import JsonSchemaFormat
from foredraft.serving.protocol.speculation_field import LOADED, MODEL_FREE, SpeculationField

SAME = (  # fields that `SamplingParams` has under the same name and type
    "n",
    "seed",
    "top_p",
    "top_k",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "guided_regex",
    "guided_grammar",
)


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a completion request, one or many, as texts or as token ids."""
    return request.prompts


def sampling_of(request: ChatRequest | CompletionRequest, *, limits: Limits) -> SamplingParams:
    """How the request wants its tokens chosen. To be called before anything else is done with the request.

    A completion request whose `max_tokens` is 0 writes one token, which is not to be shown: its prompt has to be run.

    Raises `FieldError` for a value out of range, for more than `limits` allow, and for too complex a schema, regular
    expression or grammar.
    """
    with client_words(request):
        check_request(request, limits)
        values = {name: getattr(request, name) for name in SAME if getattr(request, name) is not None}
        return SamplingParams(
            temperature=1.0 if request.temperature is None else request.temperature,
            logit_bias={int(token): bias for token, bias in (request.logit_bias or {}).items()},
            bad_words=tuple(request.bad_words or ()),
            stop=request.stops,
            stop_token_ids=tuple(request.stop_token_ids or ()),
            min_new_tokens=request.min_tokens or 0,
            guided_json=schema_text(request),
            **values,
            **(of_chat(request, limits) if isinstance(request, ChatRequest) else of_completion(request)),
        )


def of_chat(request: ChatRequest, limits: Limits) -> dict[str, Any]:
    """What only chat says of sampling."""
    most = getattr(request, request.tokens_field)
    return {
        "max_new_tokens": limits.max_tokens if most is None else most,
        "logprobs": (request.top_logprobs or 0) if request.logprobs else None,
    }


def of_completion(request: CompletionRequest) -> dict[str, Any]:
    """What only completions say of sampling."""
    most = DEFAULT_TOKENS if request.max_tokens is None else request.max_tokens
    return {
        "max_new_tokens": 1 if request.echo and most == 0 else most,
        "logprobs": request.logprobs,
        "prompt_logprobs": request.logprobs if request.echo else None,
    }


def schema_text(request: ChatRequest | CompletionRequest) -> str | None:
    """The JSON schema the text shall fulfil, wherever the request has it."""
    form = request.form if isinstance(request, ChatRequest) else None
    if form is not None:
        return json.dumps(form.json_schema.definition) if isinstance(form, JsonSchemaFormat) else ANY_OBJECT
    return json.dumps(request.guided_json) if isinstance(request.guided_json, dict) else request.guided_json


def speculation_of(request: ChatRequest | CompletionRequest, default: SpeculationConfig) -> SpeculationConfig:
    """How to speculate for the request; `default`, the engine's own way, where nothing is asked.

    Raises `FieldError` for a value out of range and for a method that would need a model.
    """
    field = request.speculation or SpeculationField()
    if field.enabled is False:
        return OFF
    with client_words(request):
        config = chosen_config(field, default)
        prediction = request.prediction if isinstance(request, ChatRequest) else None
        return config if prediction is None else predicting(config, prediction.text, named=field.method is not None)


def chosen_config(field: SpeculationField, default: SpeculationConfig) -> SpeculationConfig:
    """`default` with the keys a request has chosen; another method than its own begins at that method's defaults."""
    chosen = field.chosen
    method = chosen.get("method", default.method)
    require_served("method", method, (*MODEL_FREE, default.method))
    for name, model in drafter_names(chosen["drafters"]) if "drafters" in chosen else ():
        require(model is None, f"drafters names the model {model!r}; name methods that need none: {LOADED}")
        require_served("drafters", name, MODEL_FREE)
    base = default if method == default.method else SpeculationConfig(method=method)
    return replace(base, **chosen)


def require_served(key: str, method: str, served: tuple[str, ...]) -> None:
    """Raise `FieldError` for a method that a request may not name."""
    if method not in served:
        message = f"speculation.{key} names {method!r}; a request may name {', '.join(dict.fromkeys(served))}: {LOADED}"
        raise FieldError(message, param=f"speculation.{key}")


def predicting(config: SpeculationConfig, text: str, *, named: bool) -> SpeculationConfig:
    """`config` drafting from `text`: auto takes it in; another method gives way, unless the request has named it."""
    asked = "prediction" in [method for method, _ in drafter_names(config.drafters)]
    if config.method == AUTO and config.drafters and not asked:
        return replace(config, prediction=text, drafters=f"{config.drafters}, prediction")
    if config.method == AUTO or named or asked:
        return replace(config, prediction=text)
    return SpeculationConfig(method="prediction", prediction=text)
