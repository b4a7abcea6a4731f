"""The load of the benchmark of serving: clients in a closed loop over the openai package, and what each of them saw."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter, process_time

from openai import AsyncOpenAI
from workloads import in_turn

CHAT, COMPLETIONS = "chat", "completions"
APIS = (CHAT, COMPLETIONS)
# 17 times 13 names have no common divisor with the number of our texts: no name meets a text twice for 15,912 prompts.
FIRST = ("Ada", "Bo", "Clara", "Dimitri", "Elena", "Faruk", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Liam", "Mona")
FIRST += ("Nils", "Olga", "Pavel", "Rosa")
LAST = (
    "Berg",
    "Costa",
    "Dahl",
    "Egan",
    "Ferro",
    "Garcia",
    "Haddad",
    "Ito",
    "Jensen",
    "Kumar",
    "Lund",
    "Meyer",
    "Novak",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where requests go and what each of them says.

    Attributes:
        url: The server's address, without /v1.
        model: What it calls its model.
        api: `chat` or `completions`.
        max_tokens, temperature: Of every request.
        extra: Fields of every request that OpenAI's API does not have.
        timeout: Seconds without an answer after which a request has failed.
    """

    url: str
    model: str
    api: str
    max_tokens: int
    temperature: float
    extra: Mapping[str, object] = field(default_factory=dict)
    timeout: float = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request: its prompt and seed."""

    prompt: str
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What a client saw of one request; times are seconds from its sending.

    Attributes:
        tokens, prompt_tokens: As the server counts them.
        arrivals: When each chunk with text came; one may hold several tokens.
        whole_seconds: The end of the stream.
        text: What was written.
        error: Why it failed, in one line; none where it was served.
    """

    tokens: int = 0
    prompt_tokens: int = 0
    arrivals: tuple[float, ...] = ()
    whole_seconds: float = 0.0
    text: str = ""
    error: str | None = None

    @property
    def first_seconds(self) -> float | None:
        """Time to the first token, to the end where none of them has a text; none where the request failed."""
        return None if self.error else (*self.arrivals, self.whole_seconds)[0]

    @property
    def between_seconds(self) -> float | None:
        """Mean time a token after the first; none where there was no other."""
        if self.tokens < 2 or not self.arrivals:
            return None
        return (self.arrivals[-1] - self.arrivals[0]) / (self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Times between chunks: how long a reader sees nothing new."""
        return [later - earlier for earlier, later in pairwise(self.arrivals)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Everything the clients of one cell saw.

    Attributes:
        seconds: From the first request's sending to the last one's end.
        client_seconds: CPU time of the clients, which run on the server's machine.
        replies: In the order of the calls.
    """

    seconds: float
    client_seconds: float
    replies: tuple[Reply, ...]


class Prompts:
    """Prompts for a whole run: workloads take turns, and no two prompts are the same.

    Each begins with another user's name. So a prefix cache finds the head of the chat template and a word or two, and a
    drafter that remembers past answers meets no question twice. Both would otherwise do better in every round, and
    better than among real users.
    """

    def __init__(self, texts: Mapping[str, Sequence[str]], seed: int):
        """Prompts over `texts` by workload; requests are sampled with seeds from `seed` on."""
        self.texts = in_turn([list(its) for its in texts.values()])
        self.workloads, self.seed, self.count = len(texts), seed, 0

    def take(self, count: int) -> list[Call]:
        """The next `count` calls of the run."""
        numbers = range(self.count, self.count + count)
        self.count += count
        return [Call(prompt=self.prompt(number), seed=(self.seed + number) % 2**63) for number in numbers]

    def prompt(self, number: int) -> str:
        first, last = FIRST[number % len(FIRST)], LAST[number % len(LAST)]
        return f"My name is {first} {last}.\n\n{self.texts[number % len(self.texts)]}"


def write_load(endpoint: Endpoint, calls: Sequence[Call], concurrency: int) -> Load:
    """Send `calls` by `concurrency` clients, each the next one when its last has ended."""
    return asyncio.run(load_of(endpoint, calls, concurrency))


async def load_of(endpoint: Endpoint, calls: Sequence[Call], concurrency: int) -> Load:
    url, timeout = f"{endpoint.url}/v1", endpoint.timeout
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=timeout) as client:
        before, start = process_time(), perf_counter()
        replies = await closed_loop(lambda call: ask(client, endpoint, call), calls, concurrency)
        seconds = perf_counter() - start
        return Load(seconds=seconds, client_seconds=process_time() - before, replies=tuple(replies))


async def closed_loop(send: Callable[[Call], Awaitable[Reply]], calls: Iterable[Call], concurrency: int) -> list[Reply]:
    """Replies to `calls` in their order; never more than `concurrency` are open at once."""
    left, replies = enumerate(calls), {}

    async def client() -> None:
        for place, call in left:
            replies[place] = await send(call)

    async with asyncio.TaskGroup() as clients:
        for _ in range(concurrency):
            clients.create_task(client())
    return [replies[place] for place in sorted(replies)]


async def ask(client: AsyncOpenAI, endpoint: Endpoint, call: Call) -> Reply:
    """Send one request and read its stream; whatever goes wrong is the reply's error."""
    start = perf_counter()
    try:
        return await read(await stream_of(client, endpoint, call), start)
    except Exception as error:  # a stream may break off with errors of the HTTP library, not only with openai's
        told = f"{type(error).__name__}: {error}"
        return Reply(error=" ".join(told.split())[:300], whole_seconds=perf_counter() - start)


async def stream_of(client: AsyncOpenAI, endpoint: Endpoint, call: Call):
    said = {"model": endpoint.model, "max_tokens": endpoint.max_tokens, "temperature": endpoint.temperature}
    said |= {"seed": call.seed, "stream": True, "stream_options": {"include_usage": True}}
    said |= {"extra_body": dict(endpoint.extra)}
    if endpoint.api == CHAT:
        return await client.chat.completions.create(messages=[{"role": "user", "content": call.prompt}], **said)
    return await client.completions.create(prompt=call.prompt, **said)


async def read(stream, start: float) -> Reply:
    """Read a stream to its end. Raises `ValueError` where it ends without a count of its tokens: it broke off."""
    arrivals, pieces, usage = [], [], None
    async for chunk in stream:
        text = text_of(chunk)
        if text:
            arrivals.append(perf_counter() - start)
            pieces.append(text)
        usage = chunk.usage or usage
    whole = perf_counter() - start
    if usage is None:
        raise ValueError("the stream ended without usage")
    return Reply(
        tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        arrivals=tuple(arrivals),
        whole_seconds=whole,
        text="".join(pieces),
    )


def text_of(chunk) -> str | None:
    """What a chunk of either API adds to the text."""
    if not chunk.choices:
        return None
    choice = chunk.choices[0]
    return choice.delta.content if hasattr(choice, "delta") else choice.text
