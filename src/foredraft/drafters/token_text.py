"""What the tokens of one vocabulary write, byte by byte, and how text becomes these tokens again."""

import json
from functools import cached_property

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from foredraft.core.errors import VocabularyError, require
from foredraft.core.vocabulary import Vocabulary

MARKER = "\u2581"  # SentencePiece writes a space so
READABLE = {"ByteLevel", "ByteFallback", "Metaspace", "Replace"}  # decoders of tokens that are told as bytes


class TokenText:
    """A tokenizer taken apart: bytes of each token, and an encoder that adds nothing of its own.

    The bytes of tokens joined are their text exactly, whatever a character was split into. The encoder neither begins
    a text with a space nor adds special tokens, so a piece out of the middle of a text is read as it stands there;
    `adds_space` and `opening` say what the tokenizer would have added.

    Attributes:
        pieces: Bytes of each token, [size]; a special token's are those of its name.
        added: Names of tokens added to the vocabulary, special ones and others, by id.
        special: Those of them that stand for no text.
        bos: The token that begins a text; none where there is none.
        ends, end: All tokens that end a text, and the one to end it with; none where there is none.
        adds_space: Whether a text begins with a space that nobody wrote.
        opening: The special token that the tokenizer begins a text with, as text; empty where it adds none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, *, owner: str):
        """Read `tokenizer` as far as `vocabulary` goes. Raises `VocabularyError` naming `owner` where that fails."""
        described = description(tokenizer, owner)
        self.size = size = vocabulary.size
        self.byte_level = "ByteLevel" in decoder_kinds(described["decoder"])
        added = {i: token for i, token in tokenizer.added_tokens_decoder.items() if i < size}
        self.added = {i: token.content for i, token in added.items()}
        self.special = {i for i, token in added.items() if token.special}
        self.vocabulary = {token: i for token, i in tokenizer.get_vocab().items() if i < size}
        self.pieces = [b""] * size
        for token, i in self.vocabulary.items():
            self.pieces[i] = self.added[i].encode() if i in self.added else self.bytes_of(token)
        self.ends = vocabulary.eos_token_ids
        self.end = tokenizer.eos_token_id if tokenizer.eos_token_id in self.ends else min(self.ends, default=None)
        self.bos = tokenizer.bos_token_id if tokenizer.bos_token_id in self.added else None
        self.unknown = tokenizer.unk_token_id
        self.backend = bare(described)
        self.writes: dict[str, bool] = {}
        self.opening, self.adds_space = self.habits(tokenizer)

    def habits(self, tokenizer: PreTrainedTokenizerBase) -> tuple[str, bool]:
        """What the tokenizer begins a text with: its opening token as text, and whether a space follows."""
        tokens, words = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
        opens = tokens[:1] == [self.bos] and tokens != words
        return self.added.get(self.bos, "") if opens else "", self.text_bytes(words).startswith(b" ")

    def bytes_of(self, token: str) -> bytes:
        """Bytes of an ordinary token, from the way the vocabulary spells it."""
        if self.byte_level:
            return bytes(byte_of[c] for c in token) if byte_of.keys() >= set(token) else token.encode()
        return bytes([int(token[3:5], 16)]) if is_byte_token(token) else token.replace(MARKER, " ").encode()

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """Token that writes some bytes; where several do, the one that is no byte token, then the lowest id."""
        ordinary = [(is_byte_token(token), i) for token, i in self.vocabulary.items() if i not in self.added]
        return {self.pieces[i]: i for _, i in sorted(ordinary, reverse=True) if self.pieces[i]}

    def text_bytes(self, tokens: list[int]) -> bytes:
        return b"".join([self.pieces[token] for token in tokens])

    def encode(self, text: str) -> list[tuple[int, int, int]]:
        """Tokens of `text`, each with where its characters start and end; those of a split character share them."""
        encoding = self.backend.encode(text, add_special_tokens=False)
        spans = zip(encoding.ids, encoding.offsets, strict=True)
        return [(token, start, end) for token, (start, end) in spans if token < self.size]

    def known(self, text: str) -> str:
        """`text` less the characters this vocabulary cannot write."""
        for character in set(text) - self.writes.keys():
            tokens = [token for token, _, _ in self.encode(character)]
            self.writes[character] = bool(tokens) and self.unknown not in tokens
        return "".join(filter(self.writes.get, text))


def description(tokenizer: PreTrainedTokenizerBase, owner: str) -> dict:
    """What a tokenizer is made of. Raises `VocabularyError` naming `owner` where its tokens cannot be told as bytes."""
    require(
        getattr(tokenizer, "is_fast", False),
        f"{owner} has no tokenizer of the tokenizers library; drafting across vocabularies needs one",
        VocabularyError,
    )
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    require(
        bool(READABLE & decoder_kinds(described["decoder"])),
        f"the tokenizer of {owner} is neither byte-level nor like SentencePiece; "
        "use one that is, or a draft model with the target's vocabulary",
        VocabularyError,
    )
    return described


def is_byte_token(token: str) -> bool:
    """Whether SentencePiece writes one byte so: <0x0A>."""
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def decoder_kinds(decoder: dict | None) -> set[str]:
    """Kinds of decoder a tokenizer is made of."""
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*map(decoder_kinds, decoder.get("decoders", [])))


def byte_alphabet() -> dict[str, int]:
    """The byte each character of a byte-level vocabulary stands for (GPT-2).

    Printable Latin-1 bytes stand for themselves; the others take the characters from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


byte_of = byte_alphabet()


def bare(described: dict) -> Tokenizer:
    """The tokenizer that `described` says, less all it would add to a text."""
    steps = {name: unprefixed(described.get(name)) for name in ("normalizer", "pre_tokenizer")}
    none = dict.fromkeys(("post_processor", "truncation", "padding"))
    return Tokenizer.from_str(json.dumps(described | steps | none))


def unprefixed(step: dict | None) -> dict | None:
    """A step of normalising or splitting that puts no space before the text; none where that was all it did."""
    if step is None or step["type"] == "Prepend":
        return None
    off = {"prepend_scheme": "never", "add_prefix_space": False}
    changed = {name: value for name, value in off.items() if name in step}
    for name in {"normalizers", "pretokenizers"} & step.keys():
        changed[name] = [kept for part in step[name] if (kept := unprefixed(part)) is not None]
    return step | changed
