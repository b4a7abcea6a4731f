"""What clients send in the soak: calls of every kind, right and wrong, drawn by a seed."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
# When a client hangs up: with half of its body sent, right after sending it, a moment later, in the middle of a stream.
BEFORE, AT_ONCE, WAITING, READING = "before", "at once", "waiting", "reading"
MOST_SEEDS = 24  # requests that come again and again, to be answered with the same text each time
LONG = 160  # tokens of a text that is not waited for
OPENINGS = (
    "Once upon a time",
    "Tom and Jane are friends. One day",
    "The quick brown fox jumps over the lazy dog. The quick brown",
    "Lily had a big red ball. She",
    "def add(a, b):\n    return",
    "a b c a b c a b c a",
    "The cat said",
    "1 2 3 4 5 6 7 8",
)
WORDS = ("one", "day", "the", "little", "dog", "saw", "a", "big", "tree", "and", "wanted", "to", "play", "with", "him")
SCHEMA = {"type": "object", "properties": {"name": {"enum": ["Tom", "Lily"]}}, "required": ["name"]}
REGEXES = ("[a-z ]{1,12}", "(yes|no)", "[0-9]{3}-[0-9]{2}")
PARTS = ("suffix", "ngram", "recycling")  # of combinations


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What a server is, as far as calls depend on it.

    Attributes:
        model: What calls name it.
        context: Tokens of its context, prompt and text together.
        body_limit: Bytes of the largest body it reads.
        chat: Whether it has a chat template.
        methods: Ways to draft that need no model and that it can serve.
    """

    model: str
    context: int
    body_limit: int
    chat: bool
    methods: tuple[str, ...] = ("ngram", "suffix", "recycling", "lookahead", "self_speculation", "grammar", "auto")


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One call of a client.

    Attributes:
        kind: What it is called in the report.
        body: What it sends; for `spoken` calls all of it, the head included.
        answers: Statuses that would be right.
        path, method: Where it goes, and how.
        texts: Continuations that it asks for.
        stream: Whether the answer comes as server-sent events.
        leaves: When the client hangs up; none where it waits for the end.
        after: How long it stays: seconds for `WAITING`, events for `READING`.
        abrupt: Whether it hangs up by a reset.
        same: Calls of the same word get the same texts; none where nothing is promised.
        spoken: Whether `body` is all that is sent, and no request of HTTP.
        keeps: Whether the connection may be used again. A server that must close one on which a body is still coming
            resets it, and then its answer may be lost.
    """

    kind: str
    body: bytes = b""
    answers: frozenset[int] = frozenset({200})
    path: str = COMPLETIONS
    method: str = "POST"
    texts: int = 0
    stream: bool = False
    leaves: str | None = None
    after: float = 0.0
    abrupt: bool = False
    same: str | None = None
    spoken: bool = False
    keeps: bool = False


class Clients:
    """Draws calls; the same ones for the same seed and server."""

    def __init__(self, world: World, seed: int):
        self.world, self.random = world, Random(seed)
        self.kinds: dict[Callable[[], Call], int] = {
            self.plain: 8,
            self.streamed: 10,
            self.several: 6,
            self.guided: 6,
            self.drafted: 20,
            self.ranked: 3,
            self.hurried: 5,
            self.scored: 4,
            self.conversation: 4,
            self.looked_up: 4,
            self.malformed: 8,
            self.refused: 8,
            self.too_long: 3,
            self.too_large: 2,
            self.no_http: 1,
            self.left_before: 4,
            self.left_at_once: 5,
            self.left_waiting: 6,
            self.left_reading: 10,
        }

    def calls(self, count: int) -> Iterator[Call]:
        kinds, weights = list(self.kinds), list(self.kinds.values())
        for _ in range(count):
            yield self.random.choices(kinds, weights)[0]()

    def fields(self, **more: Any) -> dict[str, Any]:
        """A short request that is right."""
        random = self.random
        words = " ".join(random.choices(WORDS, k=random.randrange(0, 9)))
        asked = {
            "model": self.world.model,
            "prompt": f"{random.choice(OPENINGS)} {words}".strip(),
            "max_tokens": random.randrange(1, 24),
            "temperature": random.choice((0, 0, 0.7, 1)),
        }
        return asked | more

    def seeded(self) -> tuple[str, dict[str, Any]]:
        """One of the requests that come again, and its word."""
        place = self.random.randrange(MOST_SEEDS)
        asked = {
            "model": self.world.model,
            "prompt": OPENINGS[place % len(OPENINGS)],
            "max_tokens": 6 + place,
            "temperature": (0, 0.8, 1)[place % 3],
            "seed": place,
        }
        return f"seed {place}", asked

    def plain(self) -> Call:
        word, asked = self.seeded()
        return Call(kind="plain", body=dumped(asked), texts=1, same=word)

    def streamed(self) -> Call:
        word, asked = self.seeded()
        chunks = {"stream_chunk": self.random.choice(("token", "word", "sentence")), "return_drafts": True}
        asked |= {"stream": True, "stream_options": {"include_usage": True}, "return_statistics": True} | chunks
        return Call(kind="streamed", body=dumped(asked), texts=1, stream=True, same=word)

    def several(self) -> Call:
        n, prompts = self.random.choice(((2, 1), (3, 1), (4, 1), (1, 3), (2, 2)))
        texts = [self.fields()["prompt"] for _ in range(prompts)]
        stream = self.random.random() < 0.5
        asked = self.fields(prompt=texts, n=n, stream=stream)
        return Call(kind="several", body=dumped(asked), texts=n * prompts, stream=stream)

    def guided(self) -> Call:
        guide = self.random.choice(
            [{"guided_json": SCHEMA}, {"guided_json": "object"}, *({"guided_regex": regex} for regex in REGEXES)]
        )
        return Call(kind="guided", body=dumped(self.fields(**guide)), texts=1)

    def drafted(self) -> Call:
        word, asked = self.seeded()
        stream, speculation = self.random.random() < 0.3, self.speculation()
        same = "rejection_sample_method" not in speculation  # other rules than match keep the law, not the text
        body = dumped(asked | {"speculation": speculation, "stream": stream})
        return Call(kind="drafted", body=body, texts=1, stream=stream, same=word if same else None)

    def speculation(self) -> dict[str, Any]:
        """A way to draft, of very many."""
        random = self.random
        ways = (*self.world.methods, "none", "cascade", "merged", "prediction", "off", "block", "tree")
        method = random.choice(ways)
        if method == "off":
            return {"enabled": False}
        if method == "block":
            rules = {"rejection_sample_method": "block", "draft_sample_method": "greedy"}
            return {"method": "ngram", "num_speculative_tokens": random.randrange(1, 9)} | rules
        if method == "tree":
            shape = {"tree_size": random.randrange(2, 24), "tree_width": random.randrange(1, 5)}
            return {"method": random.choice(PARTS)} | shape
        return {"method": method, "num_speculative_tokens": random.randrange(1, 9)} | self.own_keys(method)

    def own_keys(self, method: str) -> dict[str, Any]:
        """Keys of one method, drawn from many values: what a server keeps for each must not add up."""
        random = self.random
        keys: dict[str, dict[str, Any]] = {
            "ngram": {"prompt_lookup_max": random.randrange(3, 9), "prompt_lookup_min": random.randrange(1, 4)},
            "recycling": {"recycling_candidates": random.randrange(1, 17)},
            "lookahead": {"lookahead_window": random.randrange(1, 5), "lookahead_ngram": random.randrange(2, 5)},
            "prediction": {"prediction": " ".join(random.choices(WORDS, k=12))},
            "auto": {"draft_confidence_threshold": random.random()},
        }
        combined = {"drafters": ", ".join(random.sample(PARTS, k=random.randrange(2, 4)))}
        return keys.get(method, {}) | (combined if method in ("cascade", "merged") else {})

    def ranked(self) -> Call:
        word, asked = self.seeded()
        body = dumped(asked | {"priority": self.random.randrange(0, 6), "timeout": 300, "user": "soak"})
        return Call(kind="ranked", body=body, texts=1, same=word)

    def hurried(self) -> Call:
        stream = self.random.random() < 0.3
        asked = self.fields(timeout=self.random.uniform(0.001, 0.1), max_tokens=LONG, ignore_eos=True, stream=stream)
        answers = frozenset({200} if stream else {200, 408})
        return Call(kind="hurried", body=dumped(asked), texts=1, stream=stream, answers=answers)

    def scored(self) -> Call:
        more = {"logprobs": self.random.randrange(0, 5), "echo": self.random.random() < 0.5, "stop": [".", "zz"]}
        penalties = {"presence_penalty": 0.5, "repetition_penalty": 1.1, "logit_bias": {"5": -3}, "top_k": 20}
        return Call(kind="scored", body=dumped(self.fields(**more, **penalties)), texts=1)

    def conversation(self) -> Call:
        said = [{"role": "user", "content": self.fields()["prompt"]}]
        asked = {"model": self.world.model, "messages": said, "max_tokens": 8, "response_format": {"type": "text"}}
        answers = frozenset({200 if self.world.chat else 400})
        texts = 1 if self.world.chat else 0
        return Call(kind="conversation", body=dumped(asked), texts=texts, path=CHAT, answers=answers)

    def looked_up(self) -> Call:
        path = self.random.choice(("/health", "/v1/models", "/metrics", "/tokenize", "/detokenize", "/no/such/path"))
        bodies = {"/tokenize": {"prompt": "Once upon"}, "/detokenize": {"tokens": [3, 4, 5]}}
        method, answer = ("POST" if path in bodies else "GET"), (404 if path == "/no/such/path" else 200)
        body = dumped(bodies[path]) if path in bodies else b""
        return Call(kind="looked up", body=body, path=path, method=method, answers=frozenset({answer}))

    def malformed(self) -> Call:
        whole = dumped(self.fields())
        deep = b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}"
        bodies = [b"", b"{", b"null", b"[]", b'"text"', whole[:-1], b"\xff\xfe" + whole, b"\x00" * 64, deep]
        bodies += [b'{"prompt": "\\ud800", "max_tokens": NaN}', b'{"prompt": "x", "max_tokens": 1e999}']
        path = self.random.choice((COMPLETIONS, CHAT, "/tokenize"))
        return Call(kind="malformed", body=self.random.choice(bodies), path=path, answers=frozenset({400}))

    def refused(self) -> Call:
        wrong: list[dict[str, Any]] = [
            {"max_tokenz": 3, "unknown": {"field": 1}},
            {"suffix": "behind"},
            {"temperature": -1},
            {"max_tokens": 10**30},
            {"n": 0},
            {"prompt": ""},
            {"prompt": [999_999]},
            {"guided_regex": "(((("},
            {"guided_regex": "(a{1000}){1000}"},
            {"guided_grammar": "start: missing"},
            {"guided_json": '{"type": 7}'},
            {"speculation": {"method": "draft_model", "model": "/etc/passwd"}},
            {"speculation": {"method": "clairvoyance"}},
            {"speculation": {"tree_size": 100_000}},
            {"logit_bias": {"x": 1}},
            {"stream_options": {"include_usage": True}},
        ]
        other = self.random.random() < 0.1
        body = dumped(self.fields(**({"model": "another"} if other else self.random.choice(wrong))))
        return Call(kind="refused", body=body, answers=frozenset({404 if other else 400}))

    def too_long(self) -> Call:
        asked = self.fields(prompt=[5] * (self.world.context + self.random.randrange(200)))
        return Call(kind="too long", body=dumped(asked), answers=frozenset({400}))

    def too_large(self) -> Call:
        body = dumped(self.fields(prompt="x" * (self.world.body_limit + self.random.randrange(1000))))
        return Call(kind="too large", body=body, answers=frozenset({413}), keeps=True)

    def no_http(self) -> Call:
        spoken = self.random.choice(
            (b"\x16\x03\x01\x02\x00\x01\x00", b"HELO there\r\n\r\n", b"\x00\x01 nothing\r\n\r\n")
        )
        return Call(kind="no HTTP", body=spoken, answers=frozenset({400}), spoken=True)

    def leaving(self, kind: str, leaves: str, *, stream: bool, after: float) -> Call:
        n = self.random.choice((1, 1, 1, 2, 3))
        asked = self.fields(max_tokens=LONG, ignore_eos=True, n=n, stream=stream)
        if self.random.random() < 0.5:
            asked["speculation"] = self.speculation()
        if self.random.random() < 0.2:
            asked["guided_regex"] = "[a-z ]{1,400}"
        abrupt = self.random.random() < 0.5
        call = Call(kind=kind, body=dumped(asked), texts=n, stream=stream, leaves=leaves, after=after, abrupt=abrupt)
        return replace(call, answers=frozenset({200}) if leaves == READING else frozenset())

    def left_before(self) -> Call:
        return self.leaving("left before the request was out", BEFORE, stream=False, after=0)

    def left_at_once(self) -> Call:
        return self.leaving("left at once", AT_ONCE, stream=self.random.random() < 0.5, after=0)

    def left_waiting(self) -> Call:
        return self.leaving("left while waiting", WAITING, stream=False, after=self.random.uniform(0.001, 0.3))

    def left_reading(self) -> Call:
        return self.leaving("left in mid-stream", READING, stream=True, after=self.random.randrange(1, 12))


def dumped(body: Any) -> bytes:
    return json.dumps(body).encode()
