"""A double of the server's API for the playground: it streams what the prompt names, and keeps what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from time import sleep

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from foredraft.serving.routes.playground import router

MODEL = "double"
KEY = "open sesame"
BEATS = 0.02  # seconds between two steps of the slow text


@dataclass(frozen=True, slots=True)
class Step:
    """One forward: the text it releases, its tokens as (text, drafter) and its rejected drafts as (text, drafter)."""

    text: str
    tokens: list[tuple[str, str | None]]
    rejected: list[tuple[str, str]] = field(default_factory=list)


STORY = [
    Step("Once", [("Once", None)]),
    Step(" upon a time", [(" upon", "suffix"), (" a", "suffix"), (" time", None)], [(" midnight", "suffix")]),
    Step("", [("\ufffd", "ngram")]),
    Step("é <img src=x>", [("\ufffd", "ngram"), (" <img src=x>", None)], [("\n", "ngram"), (" dreary", "suffix")]),
    Step(" end", [(" end", None)]),
]
STATISTICS = {
    "tau": 1.6,
    "draft_acceptance_rate": 4 / 7,
    "num_spec_steps": 3,
    "num_draft_tokens": 7,
    "num_accepted_draft_tokens": 4,
    "acceptance_per_position": [0.75, 0.5],
    "accepted_by": {"suffix": 2, "ngram": 2},
    "drafted_by": {"suffix": 4, "ngram": 3},
    "draft_seconds": 0.01,
    "verify_seconds": 0.2,
    "other_seconds": 0.03,
    "estimated_speed_up": 1.4,
    "choices": {"suffix 4": 3, "none": 1},
}


def plain(steps: list[Step]) -> list[Step]:
    """The same text without speculation: one token a step, the target's own."""
    return [
        Step(step.text if place == 0 else "", [(text, None)]) for step in steps for place, (text, _) in tokens(step)
    ]


def tokens(step: Step) -> list[tuple[int, tuple[str, str | None]]]:
    return list(enumerate(step.tokens))


class Double:
    """The API, and what it was asked.

    Attributes:
        app: What a server runs.
        bodies: Every body that came to be completed, in order.
        left: Set once a client has left in mid-stream.
        key: What requests must carry; none lets everybody in.
    """

    def __init__(self) -> None:
        self.bodies: list[dict] = []
        self.left = Event()
        self.key: str | None = None
        self.app = FastAPI()
        self.app.include_router(router)
        self.app.get("/v1/models", response_model=None)(self.models)
        self.app.post("/v1/chat/completions", response_model=None)(self.complete)
        self.app.post("/v1/completions", response_model=None)(self.complete)

    def refused(self, request: Request) -> JSONResponse | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        return JSONResponse({"error": {"message": "the request needs an API key"}}, 401)

    async def models(self, request: Request) -> JSONResponse:
        return self.refused(request) or JSONResponse({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def complete(self, request: Request) -> JSONResponse | StreamingResponse:
        if (refusal := self.refused(request)) is not None:
            return refusal
        body = await request.json()
        self.bodies.append(body)
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        if prompt == "refuse":
            return JSONResponse({"error": {"message": "temperature is 3;\n it must be at most 2"}}, 400)
        if prompt == "crowd":
            return JSONResponse({"error": {"message": "the queue is full."}}, 429, {"Retry-After": "7"})
        stream = self.endless() if prompt == "slow" else self.story(body, prompt)
        return StreamingResponse(stream, media_type="text/event-stream")

    async def story(self, body: dict, prompt: str) -> AsyncIterator[str]:
        yield ": waiting\n\n"
        steps = STORY if "speculation" not in body else plain(STORY)
        if prompt == "differ" and "speculation" in body:
            steps = [Step("Twice", [("Twice", None)]), *steps[1:]]
        for step in steps[:2] if prompt in ("break", "cut") else steps:
            await asyncio.sleep(0.005)
            yield chunk("messages" in body, step)
        if prompt == "cut":
            return
        if prompt == "break":
            yield event({"error": {"message": "the engine has stopped", "type": "server_error"}})
            return
        last = chunk_of("messages" in body, Step("", []))
        last["choices"][0]["finish_reason"] = "stop"
        yield event(last)
        usage = {"prompt_tokens": 9, "completion_tokens": 8}
        yield event({"choices": [], "usage": usage, "metrics": {"speculative_decoding": STATISTICS}})
        yield "data: [DONE]\n\n"

    async def endless(self) -> AsyncIterator[str]:
        try:
            while True:
                await asyncio.sleep(BEATS)
                yield chunk(True, Step(" tick", [(" tick", "ngram")]))
        finally:
            self.left.set()


def chunk_of(chat: bool, step: Step) -> dict:
    drafts = {
        "tokens": [{"id": place, "text": text, "drafter": drafter} for place, (text, drafter) in tokens(step)],
        "rejected": [
            {"id": place, "text": text, "depth": place + 1, "drafter": drafter}
            for place, (text, drafter) in enumerate(step.rejected)
        ],
    }
    written = {"delta": {"content": step.text}} if chat else {"text": step.text}
    return {"choices": [{"index": 0, **written, "finish_reason": None, "foredraft": drafts}]}


def chunk(chat: bool, step: Step) -> str:
    return event(chunk_of(chat, step))


def event(content: dict) -> str:
    return f"data: {json.dumps(content)}\n\n"


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    """A server of `app` on a free port in a thread of its own; gives its address."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=1))
    thread = Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
