"""One call as a client makes it, byte by byte, so that it can hang up wherever it likes."""

import asyncio
import json
from dataclasses import dataclass, field
from time import perf_counter

from soak_calls import AT_ONCE, BEFORE, READING, WAITING, Call

DONE = "[DONE]"
HEAD_BYTES = 2**20  # of the longest line of an answer, an event of a stream included


class BrokenAnswer(Exception):
    """What came is no answer, or more than one."""


@dataclass(kw_only=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        status: None where the client did not wait for it, or where nothing came.
        headers: By their names in small letters.
        body: All that was read; of a stream its events.
        seconds: From the connection to the end.
        problem: What was wrong, as far as one call shows it.
        events: Data of the events of a stream, in order.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    seconds: float = 0.0
    problem: str | None = None
    events: list[str] = field(default_factory=list)

    def json(self) -> dict:
        return json.loads(self.body)

    def chunks(self) -> list[dict]:
        return [json.loads(event) for event in self.events if event != DONE]


async def answer_to(call: Call, host: str, port: int, *, patience: float) -> Answer:
    """Make a call; a hang, a broken connection or a second answer is its `problem`."""
    answer, start = Answer(), perf_counter()
    try:
        async with asyncio.timeout(patience):
            await converse(call, host, port, answer)
    except TimeoutError:
        answer.problem = f"no end within {patience:g} s"
    except (OSError, EOFError, ValueError, BrokenAnswer) as error:
        answer.problem = f"{type(error).__name__}: {error}"
    answer.seconds = perf_counter() - start
    return answer


async def converse(call: Call, host: str, port: int, answer: Answer) -> None:
    reader, writer = await asyncio.open_connection(host, port, limit=HEAD_BYTES)
    try:
        await speak(call, writer)
        if call.leaves == WAITING:
            await asyncio.sleep(call.after)
        if call.leaves in (None, READING):
            await listen(call, reader, answer)
    finally:
        writer.transport.abort() if call.abrupt and call.leaves else writer.close()


async def speak(call: Call, writer: asyncio.StreamWriter) -> None:
    """Send the request, or half of it. A server may refuse a body before it has come: that is no failure."""
    if call.spoken:
        writer.write(call.body)
    else:
        connection = "keep-alive" if call.keeps else "close"
        head = f"{call.method} {call.path} HTTP/1.1\r\nHost: soak\r\nConnection: {connection}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(call.body)}\r\n\r\n"
        sent = call.body[: len(call.body) // 2] if call.leaves == BEFORE else call.body
        writer.write(head.encode() + sent)
    if call.leaves != AT_ONCE:
        try:
            await writer.drain()
        except ConnectionError:
            return


async def listen(call: Call, reader: asyncio.StreamReader, answer: Answer) -> None:
    """Read one answer and, unless the client leaves, make sure that nothing follows it."""
    status_line = await reader.readuntil(b"\r\n")
    answer.status = int(status_line.split()[1])
    headers = answer.headers = await headers_of(reader)
    if "text/event-stream" in headers.get("content-type", ""):
        await listen_to_events(call, reader, answer)
    elif "content-length" in headers:
        answer.body = await reader.readexactly(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        answer.body = b"".join([piece async for piece in pieces(reader)])
    else:
        answer.body = await reader.read()
    if call.leaves is None and not call.keeps and await reader.read():
        raise BrokenAnswer("something came after the answer")


async def headers_of(reader: asyncio.StreamReader) -> dict[str, str]:
    headers = {}
    while (line := await reader.readuntil(b"\r\n")) != b"\r\n":
        name, _, value = line.decode("latin-1").partition(":")
        if name.lower() in headers:
            raise BrokenAnswer(f"two headers {name}")
        headers[name.lower()] = value.strip()
    return headers


async def pieces(reader: asyncio.StreamReader):
    """The pieces of a chunked body."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        piece = await reader.readexactly(size + 2)
        yield piece[:-2]
    await reader.readexactly(2)


async def listen_to_events(call: Call, reader: asyncio.StreamReader, answer: Answer) -> None:
    rest = b""
    async for piece in pieces(reader):
        *events, rest = (rest + piece).split(b"\n\n")
        answer.events += [event.decode().removeprefix("data: ") for event in events if not event.startswith(b":")]
        if call.leaves == READING and len(answer.events) >= call.after:
            return
    if rest:
        raise BrokenAnswer("the stream ends within an event")
