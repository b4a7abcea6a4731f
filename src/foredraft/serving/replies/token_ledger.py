"""Which written tokens belong to which chunk of a stream."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from transformers import PreTrainedTokenizerBase

from foredraft.core.outcome import TokenLogprobs
from foredraft.engine.output import TokenEvent
from foredraft.sampling.detokenizer import Detokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedToken:
    """A drafted token that was not written, `depth` tokens behind the last one that stood before its step."""

    token: int
    depth: int
    drafter: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenToken:
    """A token and what is known of it.

    Attributes:
        token: Its id.
        text: What it adds to the text.
        start, end: Where in the text that is, in characters.
        drafter: Who drafted it, none where the target chose it itself.
        logprobs: Where they were asked for.
        rejected: With the first token of a step, its drafts that were not accepted.
    """

    token: int
    text: str
    start: int
    end: int
    drafter: str | None
    logprobs: TokenLogprobs | None
    rejected: list[RejectedToken] = field(default_factory=list)


class TokenLedger:
    """Tokens of one text in order, until the chunk that their last character is in takes them.

    Args:
        tokenizer: The target's; without one, tokens add no text.
        markers: Special tokens that stand in the text by these names, by id.
        start: Characters that the text begins with before its first token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase | None, markers: Mapping[int, str] | None = None, start: int = 0
    ):
        self.detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
        self.markers, self.place = markers or {}, start
        self.waiting: list[WrittenToken] = []

    def add(self, event: TokenEvent) -> list[str]:
        """Note the tokens of a step; returns the text that each of them adds, without markers."""
        pieces = [self.piece(token) for token in event.tokens]
        rejected = rejected_of(event)
        logprobs = event.logprobs or [None] * len(event.tokens)
        for token, piece, drafter, own in zip(event.tokens, pieces, event.sources, logprobs, strict=True):
            start = self.place
            self.place += len(piece) + len(self.markers.get(token, ""))
            self.waiting.append(
                WrittenToken(
                    token=token,
                    text=piece,
                    start=start,
                    end=self.place,
                    drafter=drafter,
                    logprobs=own,
                    rejected=rejected,
                )
            )
            rejected = []
        return pieces

    def piece(self, token: int) -> str:
        return self.detokenizer.push(token) if self.detokenizer is not None else ""

    def take(self, end: int | None = None) -> list[WrittenToken]:
        """Tokens up to character `end`, all of them where none is given."""
        count = sum(written.end <= end for written in self.waiting) if end is not None else len(self.waiting)
        taken, self.waiting = self.waiting[:count], self.waiting[count:]
        return taken


def rejected_of(event: TokenEvent) -> list[RejectedToken]:
    tree = event.tree
    return [
        RejectedToken(token=tree.tokens[node], depth=tree.depths[node], drafter=tree.drafters[node])
        for node in event.rejected
    ]
