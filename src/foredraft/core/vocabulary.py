"""What the engine must know of a target's tokens, without a tokenizer at hand."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Vocabulary:
    """Sizes and special tokens of a target.

    Attributes:
        rows: Width of a row of logits, padding included.
        size: Token ids that may be written, 0 to size - 1; rows past it are padding and never sampled.
        eos_token_ids: Tokens that end a text.
    """

    rows: int
    size: int
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert 0 < self.size <= self.rows
        assert all(0 <= token < self.rows for token in self.eos_token_ids)
