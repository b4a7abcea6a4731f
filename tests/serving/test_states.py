"""What a server does at its limits: killed, told to end, short of slots, with a slow reader, with a long queue."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from live_server import Live, served
from soak_doubles import CHAT, COMPLETIONS, Answer, Call, answer_to, dumped, place_of, require_rest, wait_until
from spelling_target import spelling_engine

from foredraft.engine.engine import Engine
from foredraft.serving.mailbox import Mailbox
from foredraft.serving.server_config import ServerConfig

ENVIRONMENT = os.environ | {"PYTHONPATH": "src"}
LONG = {"prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


def dice(tokens: int, **fields) -> dict:
    """A request that is written on to its last token."""
    said = [{"role": "user", "content": "say dice"}]
    return {"messages": said, "temperature": 1, "seed": 1, "max_tokens": tokens, "ignore_eos": True} | fields


def spoken(path: str, body: dict) -> bytes:
    """A request as it is on the wire."""
    whole = dumped(body)
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(whole)}\r\n\r\n".encode() + whole


# Killed and told to end: the command in a process of its own


@contextmanager
def process(port: int) -> Iterator[subprocess.Popen]:
    """`foredraft serve` once it serves."""
    flags = ["--model", "tiny", "--dtype", "fp32", "--drafter", "none", "--threads", "1", "--port", str(port)]
    command = [sys.executable, "-m", "foredraft", "serve", *flags]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert re.search(rf"http://127.0.0.1:{port}/v1", running.stdout.readline())
        yield running
    finally:
        running.kill()
        running.communicate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def half_sent(port: int, body: dict) -> Iterator[socket.socket]:
    """A connection on which the head of a request and half of its body have been sent."""
    sent = spoken(COMPLETIONS, body)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent[: -len(dumped(body)) // 2])
        yield connection


def received(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_killed_server_breaks_its_streams_and_a_told_one_finishes_them():
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process(port) as running, httpx.stream("POST", url + COMPLETIONS, json=LONG | {"stream": True}) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        running.send_signal(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            assert "data: [DONE]" not in list(lines)
    with process(port) as running, httpx.Client(base_url=url, timeout=60) as client:
        assert client.post(COMPLETIONS, json=LONG | {"max_tokens": 3}).status_code == 200
        with (
            client.stream("POST", COMPLETIONS, json=LONG | {"stream": True}) as response,
            half_sent(port, LONG) as late,
        ):
            lines = response.iter_lines()
            assert next(lines).startswith("data: {")
            running.send_signal(signal.SIGTERM)
            wait_until(lambda: not accepts(port))
            late.sendall(spoken(COMPLETIONS, LONG)[-len(dumped(LONG)) // 2 :])
            refused = received(late)
            assert refused.startswith(b"HTTP/1.1 503") and b"shutting_down" in refused
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"finish_reason":"length"' in rest[-2]
        assert (running.wait(30), running.stderr.read()) == (0, "")


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


# A full pool


def gathered(live: Live, calls: list[Call]) -> list[Answer]:
    async def all_of_them():
        return await asyncio.gather(*(answer_to(call, *place_of(live.url), patience=60) for call in calls))

    return asyncio.run(all_of_them())


def told_dice(count: int, tokens: int) -> list[Call]:
    bodies = [dice(tokens, seed=seed) for seed in range(count)]
    return [Call(kind="dice", path=CHAT, body=dumped(body), texts=1) for body in bodies]


def text_of(answer: Answer) -> str:
    return answer.json()["choices"][0]["message"]["content"]


def test_requests_that_need_more_slots_than_there_are_take_turns():
    calls = told_dice(12, tokens=150)
    with served(spelling_engine()) as live:
        wanted = [text_of(answer) for answer in gathered(live, calls)]
    engine = spelling_engine(slots=500)
    with served(engine) as live:
        answers = gathered(live, calls)
        require_rest(live)
    assert [text_of(answer) for answer in answers] == wanted
    assert engine.scheduler.preemptions


def test_a_request_that_could_never_have_its_slots_is_refused_and_others_go_on():
    with served(spelling_engine(slots=300)) as live:
        fitting, never = told_dice(1, tokens=150), told_dice(1, tokens=400)
        answers = gathered(live, [*fitting, *never, *fitting])
        require_rest(live)
    assert [answer.status for answer in answers] == [200, 400, 200]
    error = answers[1].json()["error"]
    assert error["type"] == "invalid_request_error" and "300" in error["message"] and "slots" in error["message"]


# A reader that does not read


def test_a_reader_that_stops_reading_slows_nobody_and_gets_everything(monkeypatch):
    boxes: list[Mailbox] = []
    put = Mailbox.put

    def watched(box: Mailbox, update) -> None:
        put(box, update)
        if box not in boxes:
            boxes.append(box)

    monkeypatch.setattr(Mailbox, "put", watched)
    with served(spelling_engine(method="none")) as live:
        body = dice(1500, stream=True, logprobs=True, top_logprobs=20, stream_options={"include_usage": True})
        shrink_buffers(live)
        with stalled(live, body) as reader:
            wait_until(lambda: boxes and boxes[0].limit <= len(boxes[0].pending))
            (other,) = gathered(live, told_dice(1, tokens=20))
            assert other.status == 200 and len(text_of(other)) == 20
            wait_until(lambda: live.service.engine.scheduler.idle)
            assert len(boxes[0].pending) <= boxes[0].limit + 1
            events = events_of(reader)
        require_rest(live)
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[-1]["usage"]["completion_tokens"] == 1500
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert len(text) == 1500


def shrink_buffers(live: Live) -> None:
    """Let the system hold next to nothing of what the server sends and nobody reads."""
    (listening,) = live.server.servers[0].sockets
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections inherit it


@contextmanager
def stalled(live: Live, body: dict) -> Iterator[socket.socket]:
    """A connection on which a request has been sent and next to nothing can arrive until it is read."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(60)
        connection.connect(place_of(live.url))
        connection.sendall(spoken(CHAT, body))
        yield connection


def events_of(connection: socket.socket) -> list[str]:
    """The events of a stream, read to its end; the sizes of its pieces are left out."""
    head, _, rest = received(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    pieces = []
    while size := int(rest[: (line := rest.index(b"\r\n"))], 16):
        start = line + len(b"\r\n")
        pieces.append(rest[start : start + size])
        rest = rest[start + size + len(b"\r\n") :]
    events = b"".join(pieces).decode().split("\n\n")
    return [event.removeprefix("data: ") for event in events if event and not event.startswith(":")]


# A long queue


def test_of_a_thousand_waiting_requests_each_is_served_in_its_turn_and_the_rest_are_told_to_come_again():
    engine, waiting, over = spelling_engine(max_batch=1, method="none"), 1000, 20
    taken, ended = [], []
    watch(engine, taken, ended)
    with served(engine, ServerConfig(max_waiting=waiting)) as live:
        engine.target.open.clear()
        bodies = [dumped({"prompt": f"{place} ", "max_tokens": 1}) for place in range(waiting + over)]
        calls = [Call(kind="short", body=body, texts=1) for body in bodies]
        with half_served(live):
            answers = asyncio.run(opened_when_all_wait(live, calls))
        require_rest(live)
    refused = [answer for answer in answers if answer.status != 200]
    assert [answer.status for answer in refused] == [429] * over
    assert all(answer.json()["error"]["code"] == "queue_full" for answer in refused)
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
    assert len(taken) == waiting + 1 and ended == taken


@contextmanager
def half_served(live: Live) -> Iterator[None]:
    """A request that runs, its first forward held, and takes some more steps afterwards."""
    with socket.create_connection(place_of(live.url), timeout=60) as connection:
        connection.sendall(spoken(COMPLETIONS, {"prompt": "the ", "max_tokens": 8}))
        wait_until(lambda: live.service.worker.snapshot().busy_since is not None)
        yield
        assert received(connection).startswith(b"HTTP/1.1 200")


def watch(engine: Engine, taken: list[list[int]], ended: list[list[int]]) -> None:
    """Note prompts in the order in which the engine takes them, and in which it ends them."""
    submit, step = engine.submit, engine.step

    def submitted(prompts, *others, **settings):
        requests = submit(prompts, *others, **settings)
        taken.extend(running.request.prompt for running in requests)
        return requests

    def stepped():
        events = step()
        ended.extend(running.request.prompt for running, _, output in events if output is not None)
        return events

    engine.submit, engine.step = submitted, stepped


async def opened_when_all_wait(live: Live, calls: list[Call]) -> list[Answer]:
    """Make all calls at once; the forward that is held ends when the engine's thread has been handed every one."""
    tasks = [asyncio.create_task(answer_to(call, *place_of(live.url), patience=60)) for call in calls]
    while live.service.worker.serving.calls.qsize() < len(calls):
        await asyncio.sleep(0.01)
    live.service.engine.target.open.set()
    return await asyncio.gather(*tasks)
