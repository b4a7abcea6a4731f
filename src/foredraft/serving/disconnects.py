"""A client that hangs up while its answer is made: noticed at once, and nothing more is made for it."""

import asyncio

from fastapi import Request

from foredraft.engine.output import RequestOutput
from foredraft.serving.generation import Generation

CLIENT_GONE = 499  # what proxies log for a client that closed the connection; nobody is left to read it


async def outputs_or_gone(request: Request, generation: Generation) -> list[RequestOutput] | None:
    """Every output of `generation`; none where the client hung up first. Either way the generation is over."""
    outputs, gone = asyncio.ensure_future(generation.outputs()), asyncio.ensure_future(hung_up(request))
    try:
        await asyncio.wait({outputs, gone}, return_when=asyncio.FIRST_COMPLETED)
        return outputs.result() if outputs.done() else None
    finally:
        generation.cancel()
        outputs.cancel()
        gone.cancel()


async def hung_up(request: Request) -> None:
    """Wait until the client is gone; the body of `request` has been read, so this is all that can still arrive."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
