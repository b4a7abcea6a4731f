"""POST /v1/completions: prompts continued."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from foredraft.serving.answers import answer
from foredraft.serving.declared_replies import ANSWERED, STREAMED
from foredraft.serving.generation import Order
from foredraft.serving.protocol.client_words import client_words
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.protocol.to_order import sampling_of, speculation_of
from foredraft.serving.replies.completion_reply import CompletionStream, completion_reply
from foredraft.serving.service import Service, service_of

router = APIRouter(tags=["text"])


@router.post("/v1/completions", response_model=None, responses=STREAMED | ANSWERED)
async def completions(
    request: Request, asked: CompletionRequest, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """Continue prompts, each `n` times."""
    service.require_model(asked.model)
    told = {"model": service.model_name, "tokenizer": service.engine.target.tokenizer}
    order = await service.prepare(order_of, asked, service)
    stream = CompletionStream(asked, prompts=order.prompts, **told) if asked.stream else None
    with client_words(asked):
        return await answer(request, service, order, stream=stream, whole=partial(completion_reply, asked, **told))


def order_of(asked: CompletionRequest, service: Service) -> Order:
    """What the engine is to do for a request. Raises `UserError` kinds."""
    sampling = sampling_of(asked, limits=service.limits)
    return Order(
        prompts=[service.engine.encode(prompt) for prompt in asked.prompts],
        sampling=sampling,
        speculation=speculation_of(asked, service.engine.speculation),
        priority=asked.priority or 0,
        timeout=service.timeout(asked.timeout),
    )
