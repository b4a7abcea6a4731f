"""A drafter's tokens must be the target's: same ids, same strings."""

from typing import Protocol

from foredraft.core.errors import VocabularyError, require
from foredraft.core.vocabulary import Vocabulary


class Tokenizer(Protocol):
    """What the check needs of a tokenizer; those of transformers and of tokenizers have it."""

    def get_vocab(self) -> dict[str, int]:
        """Every token's id, added tokens included."""


def same_vocabulary(first: Tokenizer, second: Tokenizer) -> bool:
    """Whether both tokenizers give every token the same id."""
    return first.get_vocab() == second.get_vocab()


def require_same_vocabulary(target_tokenizer: Tokenizer, drafter_tokenizer: Tokenizer, *, drafter: str) -> None:
    """Raise `VocabularyError` unless both tokenizers give every token the same id.

    Padded rows of either model's logits do not count. The message names both sizes and the lowest id that differs.
    """
    if same_vocabulary(target_tokenizer, drafter_tokenizer):
        return
    target, drafting = target_tokenizer.get_vocab(), drafter_tokenizer.get_vocab()
    token_id = min(token_id for _, token_id in target.items() ^ drafting.items())
    raise VocabularyError(
        f"drafter {drafter!r} has {len(drafting)} tokens and the target {len(target)}; token {token_id} is "
        f"{token_at(token_id, drafting)} for the drafter and {token_at(token_id, target)} for the target; "
        "use a drafter with the target's tokenizer"
    )


def require_same_vocabulary_size(target: Vocabulary, drafting: Vocabulary, *, drafter: str) -> None:
    """Raise `VocabularyError` unless both have as many tokens; for models that come without a tokenizer.

    Padded rows do not count.
    """
    require(
        target.size == drafting.size,
        f"drafter {drafter!r} has {drafting.size} tokens and the target {target.size}; "
        "use a drafter with the target's vocabulary",
        VocabularyError,
    )


def token_at(token_id: int, vocabulary: dict[str, int]) -> str:
    """How a message writes the token with an id."""
    return next((repr(token) for token, its_id in sorted(vocabulary.items()) if its_id == token_id), "missing")
