"""Bad words as the token sequences that spell them."""

from transformers import PreTrainedTokenizerBase

from foredraft.core.errors import require


def encode_bad_words(words: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Each word's tokens at the start of a text, after a space, and right after other text; each sequence once.

    Tokenizers disagree on where the space before a word goes, so all three forms are needed: byte-level ones carry it
    in the token only when it is written, sentencepiece ones also at the start of a text.

    Raises `ConfigError` for a word that has no tokens.
    """
    sequences: list[list[int]] = []
    for word in words:
        bare = word.lstrip(" ") or word
        forms = [tokens_of(bare, tokenizer), tokens_of(" " + bare, tokenizer), tokens_inside_text(bare, tokenizer)]
        forms = [form for form in forms if form]
        require(bool(forms), f"bad_words holds {word!r}, which has no tokens in this vocabulary; leave it out")
        sequences += forms
    return unique(sequences)


def tokens_of(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def tokens_inside_text(word: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Tokens of `word` right after a line break, where no tokenizer adds a space; empty where the two merge."""
    anchor = tokens_of("\n", tokenizer)
    both = tokens_of("\n" + word, tokenizer)
    return both[len(anchor) :] if both[: len(anchor)] == anchor else []


def unique(sequences: list[list[int]]) -> list[list[int]]:
    return list(map(list, dict.fromkeys(map(tuple, sequences))))
