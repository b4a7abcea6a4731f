"""A server that answers at once with words counted beforehand; a small ASGI app for the benchmark of serving."""

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import uvicorn

WORDS = ["one ", "two ", "three "]  # a chunk each; the second counts for two tokens
TOKENS, PROMPT_TOKENS = 4, 7


class DoubleServer:
    """Both APIs and /health.

    A prompt with `fail` in it is refused, one with `break` breaks off in mid-stream, one with `silent` has no text.

    Attributes:
        bodies: What was asked, in the order of arrival.
        open, most: Requests being answered now, and most at a time.
    """

    def __init__(self):
        self.bodies: list[dict] = []
        self.open = self.most = 0

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"] == "/health":
            return await reply(send, 200, [b"{}"])
        body = json.loads((await receive())["body"])
        self.bodies.append(body)
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await self.answer(scope["path"], body, send)
        finally:
            self.open -= 1

    async def answer(self, path: str, body: dict, send) -> None:
        chat = path.endswith("/chat/completions")
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        if "fail" in prompt:
            return await reply(send, 400, [json.dumps({"error": {"message": "not this one"}}).encode()])
        words = [] if "silent" in prompt else WORDS
        chunks = [chunk(word, chat=chat) for word in ["", *words]]
        if "break" not in prompt:
            chunks.append({"choices": [], "usage": {"completion_tokens": TOKENS, "prompt_tokens": PROMPT_TOKENS}})
        await asyncio.sleep(0.01)  # so that others arrive meanwhile
        await reply(send, 200, [f"data: {json.dumps(its)}\n\n".encode() for its in chunks])


def chunk(text: str, *, chat: bool) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": text}} if chat else {"index": 0, "text": text}]}


async def reply(send, status: int, parts: list[bytes]) -> None:
    kind = b"text/event-stream" if len(parts) > 1 else b"application/json"
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@contextmanager
def double_served() -> Iterator[tuple[str, DoubleServer]]:
    """Its address and insides while the context lasts, in a thread."""
    app = DoubleServer()
    server = uvicorn.Server(uvicorn.Config(app, port=0, lifespan="off", log_level="warning"))
    with uvicorn_socket() as bound:
        thread = Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}", app
        finally:
            server.should_exit = True
            thread.join(10)


def uvicorn_socket():
    return uvicorn.Config(None, host="127.0.0.1", port=0, log_level="warning").bind_socket()


if __name__ == "__main__":
    uvicorn.run(DoubleServer(), host="127.0.0.1", port=int(sys.argv[1]), lifespan="off", log_level="warning")
