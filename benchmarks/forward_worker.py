"""A contestant of the benchmark of the forward in a process of its own: a request a line in, an answer a line out.

Only the standard library: peers run this in environments of their own. A request is JSON with the name of a method
under `do` and its arguments; an answer is JSON, `{"error": ...}` where it failed. A contestant works only while a
request of it runs.
"""

import json
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import IO, Protocol

FAILURES = (ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, OSError, RuntimeError, TypeError)
FAILURES += (ValueError,)


class Contestant(Protocol):
    """One model at a time, and a cache that holds what `fill` put there."""

    def load(self, model: str, threads: int) -> dict:
        """Load the model at `model` in place of the one before; returns what the record says of it."""

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Logits behind the last of `tokens`, [V]; the cache is used up."""

    def fill(self, tokens: Sequence[int]) -> None:
        """Make the cache hold exactly `tokens`."""

    def steps(self, tokens: Sequence[int]) -> list[float]:
        """Seconds of a forward of `tokens` behind the cache, logits of all wanted; one or a few. The cache stays."""

    def write(self, tokens: Sequence[int], new: int) -> tuple[float, list[int]]:
        """Seconds from the first to the last of `new` tokens written greedily after `tokens`, and the new tokens."""


class Requests:
    """What can be asked of a contestant."""

    def __init__(self, contestant: Contestant):
        self.contestant = contestant

    def ready(self) -> dict:
        """Answered once everything is imported."""
        return {}

    def load(self, model: str, threads: int) -> dict:
        return {"about": self.contestant.load(model, threads)}

    def logits(self, tokens: list[int]) -> dict:
        return {"logits": self.contestant.logits(tokens)}

    def fill(self, tokens: list[int]) -> dict:
        self.contestant.fill(tokens)
        return {}

    def measure(self, tokens: list[int], seconds: float, least: int) -> dict:
        """Forwards for about `seconds`, at least `least`, after one that is not counted: others have had the caches."""
        self.contestant.steps(tokens)
        times: list[float] = []
        until = perf_counter() + seconds
        while len(times) < least or perf_counter() < until:
            times += self.contestant.steps(tokens)
        return {"seconds": times}

    def write(self, tokens: list[int], new: int) -> dict:
        seconds, text = self.contestant.write(tokens, new)
        return {"seconds": seconds, "tokens": text}

    def answer(self, request: dict) -> dict:
        arguments = dict(request)
        try:
            return getattr(self, arguments.pop("do"))(**arguments)
        except FAILURES as error:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            return {"error": first}


def serve(contestant: Contestant) -> None:
    """Answer until the asking side closes the pipe."""
    requests, out = Requests(contestant), own_output()
    for line in sys.stdin:
        out.write(json.dumps(requests.answer(json.loads(line))) + "\n")
        out.flush()


def own_output() -> IO[str]:
    """Standard output for answers alone: what libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out
