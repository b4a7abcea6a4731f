"""POST /v1/chat/completions: a conversation continued by the assistant."""

from dataclasses import replace
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from foredraft.core.sampling_params import SamplingParams
from foredraft.serving.answers import answer
from foredraft.serving.chat.template import render
from foredraft.serving.chat.tool_calls import tool_format
from foredraft.serving.chat.tool_grammar import tool_grammar
from foredraft.serving.declared_replies import ANSWERED, STREAMED
from foredraft.serving.generation import Order
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.client_words import client_words
from foredraft.serving.protocol.to_order import sampling_of, speculation_of
from foredraft.serving.replies.chat_reply import ChatStream, chat_reply
from foredraft.serving.service import Service, service_of

router = APIRouter(tags=["text"])


@router.post("/v1/chat/completions", response_model=None, responses=STREAMED | ANSWERED)
async def chat_completions(
    request: Request, asked: ChatRequest, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """Continue a conversation, `n` times."""
    service.require_model(asked.model)
    told = {"model": service.model_name, "tokenizer": service.engine.target.tokenizer}
    order = await service.prepare(order_of, asked, service)
    stream = ChatStream(asked, **told) if asked.stream else None
    with client_words(asked):
        return await answer(request, service, order, stream=stream, whole=partial(chat_reply, asked, **told))


def order_of(asked: ChatRequest, service: Service) -> Order:
    """What the engine is to do for a request. Raises `UserError` kinds."""
    sampling = sampling_of(asked, limits=service.limits)
    return Order(
        prompts=[render(service.engine, asked)],
        sampling=with_calls(sampling, asked, service),
        speculation=speculation_of(asked, service.engine.speculation),
        priority=asked.priority or 0,
        timeout=service.timeout(asked.timeout),
    )


def with_calls(sampling: SamplingParams, asked: ChatRequest, service: Service) -> SamplingParams:
    """`sampling`, bound to the template's way to write tool calls as far as the request demands any of it."""
    format = tool_format(service.engine.target.tokenizer) if asked.calls_possible else None
    grammar = format and tool_grammar(format, asked.tools, asked.tool_choice, asked.parallel_tool_calls)
    return sampling if grammar is None else replace(sampling, guided_grammar=grammar)
