"""Requests of every kind at once: what is asked over HTTP, what comes back, and what an engine alone writes for it."""

import asyncio
import json
import random
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import cycle
from typing import Any

import httpx
from spelling_target import SpellingTarget

from foredraft.core.sampling_params import SamplingParams
from foredraft.engine.engine import Engine

LETTERS = b"abcdefghijklmnopqrstuvwxyz "
BEGINNINGS = ["", "A story of a fox and a dog, told by the fire. ", "A story of a king who had no crown. Chapter one: "]
ENDINGS = ["the fox said ", "and then", "one two three one two", "x", "it was a dark night, and the wind was cold"]
PREDICTION = "the quick brown fox and the lazy dog"
SPECULATIONS: list[dict[str, Any] | None] = [  # none: as the server was started
    None,
    {"enabled": False},
    {"method": "ngram", "prompt_lookup_min": 1},
    {"method": "ngram", "prompt_lookup_min": 1, "tree_size": 8, "tree_width": 2},
    {"method": "suffix", "num_speculative_tokens": 6},
    {"method": "suffix", "tree_size": 12},
    {"method": "recycling", "tree_size": 12},
    {"method": "lookahead", "lookahead_window": 3, "lookahead_ngram": 3},
    {"method": "prediction", "prediction": PREDICTION},
    {"method": "grammar"},
    {"method": "cascade", "drafters": "suffix, recycling"},
    {"method": "merged", "drafters": "ngram, recycling", "tree_size": 12},
    {"method": "auto", "num_speculative_tokens": 4},
    {"method": "auto", "drafters": "suffix, lookahead"},
]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 1.0, "top_k": 8},
    {"temperature": 0.9, "top_p": 0.8, "logit_bias": {40: 2.0, 41: -5.0}},
    {"temperature": 0.8, "min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    {"temperature": 1.0, "typical_p": 0.9},
    {"repetition_penalty": 1.3, "bad_words": ("an", "o")},
]
ENDS: list[dict[str, Any]] = [
    {},
    {"stop": ("a", "ox"), "min_new_tokens": 6},
    {"n": 2},
    {"ignore_eos": True},
    {"n": 3, "stop": ("e",)},
]
NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
SCHEMA = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
GUIDES: list[dict[str, Any]] = [
    {},
    {},
    {},
    {"guided_regex": "([a-z]{3} ){2,9}"},
    {},
    {},
    {"guided_json": json.dumps(SCHEMA | {"additionalProperties": False})},
    {},
    {"guided_grammar": 'start: ("yes" | "no") (", " ("yes" | "no"))*'},
]
CLIENT_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """One request.

    Attributes:
        prompt: Text to continue; in a chat what the user says.
        chat: Whether it goes to /v1/chat/completions.
        sampling: As the engine is asked; the HTTP request says the same.
        speculation, priority: As the HTTP request has them.
        stream: Whether the answer is streamed.
        leave: Chunks of a stream after which the client hangs up; none stays.
        patience: Seconds after which a client hangs up that waits for a whole answer; none stays.
    """

    prompt: str
    chat: bool
    sampling: SamplingParams
    speculation: dict[str, Any] | None
    priority: int
    stream: bool
    leave: int | None
    patience: float | None

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    @property
    def body(self) -> dict[str, Any]:
        what = {"messages": [{"role": "user", "content": self.prompt}]} if self.chat else {"prompt": self.prompt}
        how = {"speculation": self.speculation, "priority": self.priority, "temperature": self.sampling.temperature}
        return what | client_fields(self.sampling) | how | {"stream": self.stream, "return_drafts": self.stream}


@dataclass(slots=True)
class Written:
    """A continuation: its text, its tokens where they are told, and why it ended where it has."""

    text: str = ""
    tokens: list[int] | None = None
    reason: str | None = None

    def begins(self, whole: "Written") -> bool:
        return whole.text.startswith(self.text) and whole.tokens[: len(self.tokens)] == self.tokens


class RamblingTarget(SpellingTarget):
    """Writes letters by a law of the last two tokens: loops where it is greedy, all sorts of text where it is not."""

    def __init__(self, *, slots: int):
        super().__init__(slots=slots)
        self.known: dict[tuple[int, ...], list[float]] = {}

    def next_byte(self, history: tuple[int, ...]) -> list[float]:
        last = history[-2:]
        if last not in self.known:
            draws = random.Random(repr(last))
            usual = {0, *(self.ids[letter] for letter in LETTERS)}
            self.known[last] = [draws.gauss(6 if token in usual else 0, 2) for token in range(257)]
        return self.known[last]


def client_fields(sampling: SamplingParams) -> dict[str, Any]:
    """What a request says of sampling, under OpenAI's names; what is as usual is left out."""
    told = {}
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        usual = field.default if field.default_factory is MISSING else field.default_factory()
        if value != usual or field.name == "max_new_tokens":
            told[CLIENT_NAMES.get(field.name, field.name)] = value
    return told


def mixed(count: int, *, tokens: int, seed: int, speculations: Sequence[dict[str, Any] | None]) -> list[Ask]:
    """Requests that combine all of the lists above, each list at its own pace; up to `tokens` tokens each."""
    draws = random.Random(seed)
    kinds = zip(range(count), cycle(speculations), cycle(GUIDES), strict=False)
    return [one(draws, index, speculation, guide, tokens) for index, speculation, guide in kinds]


def one(draws: random.Random, index: int, speculation: dict | None, guide: dict[str, Any], tokens: int) -> Ask:
    sampling = SamplingParams(
        max_new_tokens=draws.randint(tokens // 2, tokens),
        seed=draws.randint(0, 2**62),
        **draws.choice(SAMPLINGS),
        **(guide or draws.choice(ENDS)),
    )
    stream, leaves = draws.random() < 0.6, draws.random() < 0.2
    return Ask(
        prompt=draws.choice(BEGINNINGS) + draws.choice(ENDINGS),
        chat=draws.random() < 0.3,
        sampling=sampling,
        speculation=speculation,
        priority=draws.choice([-1, 0, 0, 0, 2]),
        stream=stream,
        leave=draws.randint(0, 6) if stream and leaves else None,
        patience=draws.uniform(0.01, 1.0) if leaves and not stream else None,
    )


def alone(engine: Engine, ask: Ask) -> list[Written]:
    """What `engine`, which drafts nothing and does nothing else, writes for a request."""
    prompt = engine.chat(ask.body["messages"]) if ask.chat else engine.encode(ask.prompt)
    outputs = engine.generate(prompt, ask.sampling)
    return [Written(output.text, output.token_ids, output.finish_reason) for output in outputs]


async def all_at_once(url: str, asks: Sequence[Ask]) -> list[list[Written] | None]:
    """What came back for each request, none where its client has left without anything."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits) as client:
        return await asyncio.gather(*(asked(client, ask) for ask in asks))


async def asked(client: httpx.AsyncClient, ask: Ask) -> list[Written] | None:
    if ask.stream:
        return await streamed(client, ask)
    try:
        async with asyncio.timeout(ask.patience):
            reply = await client.post(ask.path, json=ask.body)
    except TimeoutError:
        return None
    assert reply.status_code == 200, (reply.text, ask)
    return [Written(text_of(choice), None, choice["finish_reason"]) for choice in reply.json()["choices"]]


async def streamed(client: httpx.AsyncClient, ask: Ask) -> list[Written]:
    got = [Written(tokens=[]) for _ in range(ask.sampling.n)]
    async with client.stream("POST", ask.path, json=ask.body) as reply:
        assert reply.status_code == 200, (await reply.aread(), ask)
        left = ask.leave
        async for line in reply.aiter_lines():
            if left == 0:
                return got
            if line.startswith("data: {"):
                take(got, json.loads(line.removeprefix("data: ")))
                left = None if left is None else left - 1
    assert line == "" and all(each.reason for each in got), (got, ask)
    return got


def take(got: list[Written], chunk: dict[str, Any]) -> None:
    """Add a chunk of a stream to what it belongs to."""
    for choice in chunk["choices"]:
        written = got[choice["index"]]
        written.text += text_of(choice)
        written.tokens += [token["id"] for token in choice.get("foredraft", {}).get("tokens", [])]
        written.reason = choice["finish_reason"]


def text_of(choice: dict[str, Any]) -> str:
    """The text of a choice of either kind, whole or a piece."""
    said = choice.get("message") or choice.get("delta")
    return (said.get("content") or "") if said is not None else choice.get("text", "")
