"""From an order to the response: streamed or whole, as it was asked."""

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from foredraft.engine.output import RequestOutput
from foredraft.serving.disconnects import CLIENT_GONE, outputs_or_gone
from foredraft.serving.failures import require_texts
from foredraft.serving.generation import Order
from foredraft.serving.replies.reply_stream import ReplyStream
from foredraft.serving.service import Service
from foredraft.serving.streaming import EventStream

Whole = Callable[[Sequence[RequestOutput]], dict[str, Any]]


async def answer(
    request: Request, service: Service, order: Order, *, stream: ReplyStream | None, whole: Whole
) -> Response:
    """Have the engine write; the reply is made by `stream`, by `whole` where that is none.

    Raises what `Service.submit` raises, `EngineFailure`, and `HTTPException` where a continuation has failed.
    """
    generation = await service.submit(order)
    if stream is not None:
        return EventStream(generation, stream)
    outputs = await outputs_or_gone(request, generation)
    if outputs is None:
        return Response(status_code=CLIENT_GONE)
    require_texts(outputs)
    return JSONResponse(whole(outputs))
