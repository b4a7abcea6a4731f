"""When a text ends, and which part of it may be shown."""

from dataclasses import dataclass

from foredraft.core.errors import require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.detokenizer import Detokenizer


@dataclass(slots=True)  # not frozen: one is made for every request of a step
class Stop:
    """What became of newly committed tokens.

    Attributes:
        kept: How many of them belong to the output; the rest lie past its end.
        finish_reason: stop or length at the end of the text, none while it goes on.
        text: Text that may be shown now; at the end all that is left.
    """

    kept: int
    finish_reason: str | None
    text: str


def ending_tokens(params: SamplingParams, vocabulary: Vocabulary) -> set[int]:
    """Token ids that end a request's text."""
    return {*params.stop_token_ids, *(() if params.ignore_eos else vocabulary.eos_token_ids)}


class Stopper:
    """Reads a request's output and finds its end, inside an accepted run too.

    A stop token is kept but has no text. A stop string is cut from the text with all that follows, while the token
    that completed it is kept. Neither counts for the first `min_new_tokens` tokens. Text that might be the beginning
    of a stop string is held back.

    Raises `ConfigError` when there are stop strings and no detokenizer to find them.
    """

    def __init__(self, params: SamplingParams, vocabulary: Vocabulary, detokenizer: Detokenizer | None):
        require(
            detokenizer is not None or not params.stop,
            f"stop is {list(params.stop)}, which needs a tokenizer; this engine has none, use stop_token_ids",
        )
        self.strings = params.stop
        self.endings = ending_tokens(params, vocabulary)
        self.minimum = params.min_new_tokens
        self.maximum = params.max_new_tokens
        self.detokenizer = detokenizer
        self.written = 0
        self.held = ""
        self.finished = False

    def push(self, tokens: list[int]) -> Stop:
        """Take newly committed output tokens in order; not to be called once the text has ended."""
        assert not self.finished
        if not self.strings and self.written + len(tokens) < self.maximum and self.endings.isdisjoint(tokens):
            self.written += len(tokens)  # nothing can end here, and nothing is held back
            return Stop(len(tokens), None, self.detokenizer.push_all(tokens) if self.detokenizer else "")
        shown = ""
        for kept, token in enumerate(tokens, start=1):
            text, reason = self.take(token)
            shown += text
            if reason is not None:
                self.finished = True
                return Stop(kept, reason, shown)
        return Stop(len(tokens), None, shown)

    def take(self, token: int) -> tuple[str, str | None]:
        """Text to show after `token`, and the finish reason if it ends the text."""
        self.written += 1
        counts = self.written > self.minimum
        if counts and token in self.endings:
            return self.rest(), "stop"
        delta = self.detokenizer.push(token) if self.detokenizer else ""
        cut = self.cut(delta) if counts else None
        self.held += delta
        if cut is not None:
            return self.held[:cut], "stop"
        if self.written == self.maximum:
            return self.rest(), "length"
        return self.release(), None

    def cut(self, delta: str) -> int | None:
        """Where in the held text plus `delta` the first stop string begins that ends inside `delta`."""
        text = self.held + delta
        starts = [text.find(string, max(0, len(self.held) - len(string) + 1)) for string in self.strings]
        return min((start for start in starts if start >= 0), default=None)

    def release(self) -> str:
        """Take from the held text what cannot be the beginning of a stop string."""
        free = len(self.held) - max((overlap(self.held, string) for string in self.strings), default=0)
        shown, self.held = self.held[:free], self.held[free:]
        return shown

    def rest(self) -> str:
        return self.held + (self.detokenizer.flush() if self.detokenizer else "")


def overlap(text: str, string: str) -> int:
    """Length of the longest end of `text` that begins `string` without completing it."""
    longest = min(len(text), len(string) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(string[:size])), 0)
