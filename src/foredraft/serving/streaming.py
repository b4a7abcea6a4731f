"""Server-sent events: what a stream of updates looks like on the wire, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import HTTPException
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from foredraft.serving.errors import EngineFailure, openai_error
from foredraft.serving.failures import require_texts
from foredraft.serving.generation import Generation
from foredraft.serving.mailbox import Update
from foredraft.serving.replies.reply_stream import ReplyStream

DONE = b"data: [DONE]\n\n"
WAITING = b": waiting\n\n"  # a comment: clients pass over it, proxies see that the connection lives
WAITING_SECONDS = 5.0
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy that gathered events would delay them


class EventStream(StreamingResponse):
    """Streams a generation as it is written; whatever ends the response ends the generation too."""

    media_type = "text/event-stream"

    def __init__(self, generation: Generation, reply: ReplyStream):
        self.generation = generation
        super().__init__(events(generation, reply), headers=HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.generation.cancel()  # here too: a reader may leave while `events` is not running


async def events(generation: Generation, reply: ReplyStream) -> AsyncIterator[bytes]:
    """What goes over the wire: chunks, a comment where nothing comes for long, an error event where it breaks off."""
    try:
        async for update in updates(generation):
            if update is None:
                yield WAITING
                continue
            require_texts([update.output] if update.output is not None else [])
            for chunk in reply.push(update):
                yield event(chunk)
        for chunk in reply.finish():
            yield event(chunk)
        yield DONE
    except HTTPException as error:
        yield event(error.detail)
    except EngineFailure as error:
        yield event(openai_error(str(error), kind="server_error", code="engine_failure"))
    finally:
        generation.cancel()


async def updates(generation: Generation) -> AsyncIterator[Update | None]:
    """Every update, and none after each few seconds without one."""
    while True:
        if not await generation.ready(WAITING_SECONDS):
            yield None
            continue
        try:
            yield await anext(generation)
        except StopAsyncIteration:
            return
        if generation.mailbox.pending:
            await asyncio.sleep(0)  # a long backlog must not keep others from the event loop


def event(content: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
