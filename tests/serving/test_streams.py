"""Streams on the wire: their form, what comes while nothing comes, and what ends with them."""

import json
from time import sleep

import httpx
import pytest
from live_server import Live, served
from spelling_target import spelling_engine

from foredraft.serving import streaming
from foredraft.serving.errors import EngineFailure


def chat_body(said: str, **fields) -> dict:
    asked = {"model": "scripted", "messages": [{"role": "user", "content": f"say {said}"}], "temperature": 0}
    return asked | {"stream": True} | fields


ENDLESS = chat_body("dice", max_tokens=3500, temperature=1, ignore_eos=True)
CHAT = "/v1/chat/completions"


def events_of(live: Live, body: dict, path: str = CHAT) -> list[str]:
    """What the server sends: one string an event."""
    response = httpx.post(live.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    return response.text.removesuffix("\n\n").split("\n\n")


def chunks_of(events: list[str]) -> list[dict]:
    assert events[-1] == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events[:-1] if not event.startswith(":")]


def busy(live: Live) -> bool:
    snapshot = live.service.worker.snapshot()
    return bool(snapshot.waiting or snapshot.running)


def wait_until(holds) -> None:
    for _ in range(2000):
        if holds():
            return
        sleep(0.01)
    raise AssertionError("it did not come to be")


def test_a_chat_stream_begins_with_the_role_and_ends_with_a_reason(spelling):
    chunks = chunks_of(events_of(spelling, chat_body("hello there")))
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "hello there"
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons[-1] == "stop" and not any(reasons[:-1])


def test_a_completion_stream_is_the_text_of_the_whole_reply(spelling):
    body = {"model": "scripted", "prompt": "the ", "max_tokens": 20, "temperature": 0}
    whole = httpx.post(f"{spelling.url}/v1/completions", json=body).json()["choices"][0]["text"]
    chunks = chunks_of(events_of(spelling, body | {"stream": True}, "/v1/completions"))
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole != ""


def test_letters_of_several_tokens_are_never_cut(spelling):
    chunks = chunks_of(events_of(spelling, chat_body("déjà vu ☕ 日本")))
    pieces = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(pieces) == "déjà vu ☕ 日本" and not any("\ufffd" in piece for piece in pieces)


def test_several_continuations_share_a_stream(spelling):
    chunks = chunks_of(events_of(spelling, chat_body("dice", n=3, seed=1, temperature=1, max_tokens=8)))
    texts = {index: "" for index in range(3)}
    for chunk in chunks:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["delta"].get("content") or ""
    assert all(len(text) == 8 for text in texts.values()) and len(set(texts.values())) == 3


@pytest.mark.parametrize(
    ("kind", "pieces"), [("word", ["One ", "two. ", "Three."]), ("sentence", ["One two. ", "Three."])]
)
def test_text_comes_in_the_pieces_that_are_asked_for(spelling, kind, pieces):
    chunks = chunks_of(events_of(spelling, chat_body("One two. Three.", stream_chunk=kind)))
    found = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert [piece for piece in found if piece] == pieces


def test_usage_comes_last_where_it_is_asked_for(spelling):
    chunks = chunks_of(events_of(spelling, chat_body("hello", stream_options={"include_usage": True})))
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] >= 5
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_comments_come_while_nothing_else_does(spelling, held, monkeypatch):
    monkeypatch.setattr(streaming, "WAITING_SECONDS", 0.01)
    with httpx.stream("POST", spelling.url + CHAT, json=chat_body("hello")) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line) == ": waiting"
        held.open.set()
        told = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert told[-1] == "[DONE]" and len(told) > 2


@pytest.mark.parametrize("n", [1, 4])
def test_a_reader_who_leaves_frees_the_slots(spelling, n):
    with httpx.stream("POST", spelling.url + CHAT, json=ENDLESS | {"n": n}) as response:
        lines = response.iter_lines()  # named, because httpx hangs up when the iterator is collected
        next(lines)
        wait_until(lambda: busy(spelling))
    wait_until(lambda: not busy(spelling))


def test_a_caller_who_leaves_before_a_whole_reply_frees_the_slots(spelling):
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(spelling.url + CHAT, json=ENDLESS | {"stream": False}, timeout=httpx.Timeout(10, read=0.2))
    wait_until(lambda: not busy(spelling))


def test_a_caller_who_leaves_the_queue_is_taken_out_of_it(spelling, held):
    before = spelling.service.worker.snapshot().running
    with httpx.stream("POST", spelling.url + CHAT, json=chat_body("hello")):
        wait_until(lambda: spelling.service.worker.snapshot().running > before)
    held.open.set()
    wait_until(lambda: not busy(spelling))


def test_a_slow_reader_gets_every_letter(spelling):
    """What it has not read is joined, so that what waits for it stays small."""
    with httpx.stream("POST", spelling.url + CHAT, json=chat_body("x" * 900, max_tokens=1000)) as response:
        wait_until(lambda: not busy(spelling))
        chunks = chunks_of("".join(response.iter_text()).removesuffix("\n\n").split("\n\n"))
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == "x" * 900


def test_a_stream_that_takes_too_long_says_what_ended_it(spelling):
    last = chunks_of(events_of(spelling, ENDLESS | {"timeout": 0.2}))[-1]["choices"][0]
    assert (last["finish_reason"], last["foredraft"]) == ("length", {"ended": "timeout"})


class Dying:
    """A generation whose engine dies after its first update."""

    def __init__(self):
        self.cancelled = False

    async def ready(self, seconds: float) -> bool:
        return True

    async def __anext__(self):
        raise EngineFailure("the engine has stopped")

    def cancel(self) -> None:
        self.cancelled = True


@pytest.mark.anyio
async def test_an_engine_that_dies_ends_its_streams_with_an_error_event():
    generation = Dying()
    (event,) = [event async for event in streaming.events(generation, reply=None)]
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "engine_failure"
    assert generation.cancelled


def test_a_request_the_engine_fails_at_is_a_500_and_others_go_on():
    engine = spelling_engine()
    with served(engine) as live:
        engine.target.law = failing_at(b"poison", engine.target)
        poisoned = httpx.post(live.url + CHAT, json=chat_body("poison", stream=False))
        assert poisoned.status_code == 500 and poisoned.json()["error"]["code"] == "request_failed"
        assert "poison" not in poisoned.text
        events = events_of(live, chat_body("poison"))
        assert json.loads(events[-1].removeprefix("data: "))["error"]["code"] == "request_failed"
        healthy = httpx.post(live.url + CHAT, json=chat_body("health", stream=False))
        assert healthy.json()["choices"][0]["message"]["content"] == "health"
        assert httpx.get(f"{live.url}/health").status_code == 200


def failing_at(word: bytes, target):
    def law(history: tuple[int, ...]) -> list[float]:
        if word in bytes(target.bytes.get(token, 0) for token in history):
            raise RuntimeError("poison in the prompt")
        return target.next_byte(history)

    return law
