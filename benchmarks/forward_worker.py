"""What a contestant of the benchmark of the forward is asked, in a process of its own. Only the standard library."""

from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from line_worker import LineWorker


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


class Requests(LineWorker):
    """What can be asked of a contestant."""

    def __init__(self, contestant: Contestant):
        self.contestant = contestant

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


def serve(contestant: Contestant) -> None:
    """Answer until the asking side closes the pipe."""
    Requests(contestant).serve()
