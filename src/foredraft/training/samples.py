"""Texts to learn from, and which of them are kept back."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.core.errors import UserError, require

HASHES = 2**64


class DataError(UserError):
    """A file of training data cannot be read, or holds a line that is no sample."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A text as tokens.

    Attributes:
        tokens: Token ids, [T].
        written: Whether the assistant wrote the token, [T]: those a drafter will have to guess.
        source: Where it stands, `file:line`.
    """

    tokens: Sequence[int]
    written: Sequence[bool]
    source: str

    def __post_init__(self) -> None:
        assert len(self.tokens) == len(self.written)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def prompt(self) -> Sequence[int]:
        """Tokens before the first written one; the whole text where that is the first of all."""
        first = self.written.index(True) if any(self.written) else 0
        return self.tokens[:first] if first else self.tokens


@dataclass(frozen=True, slots=True)
class Split:
    """Samples to train on, and samples kept back to measure on."""

    training: list[Sample]
    held_out: list[Sample]

    @classmethod
    def of(cls, samples: Sequence[Sample], share: float) -> "Split":
        """Keep back about `share` of the prompts, chosen by a hash of each.

        Answers to one prompt stay on one side, and a sample stays on its side whatever else is read.
        """
        require(0 <= share < 1, f"held_out is {share}; it must be at least 0 and less than 1")
        parts: tuple[list[Sample], list[Sample]] = ([], [])
        for sample in samples:
            parts[prompt_hash(sample) < share * HASHES].append(sample)
        return cls(*parts)


def prompt_hash(sample: Sample) -> int:
    """A number from 0 to 2**64 - 1, the same for the same prompt on any machine."""
    return int(token_hash(sample.prompt)[:16], 16)


def token_hash(tokens: Sequence[int]) -> str:
    """SHA-256 of token ids as hexadecimal digits."""
    return hashlib.sha256(array("q", tokens).tobytes()).hexdigest()
