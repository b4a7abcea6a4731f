"""Text of tokens as they are written."""

from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerBase

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns output tokens into text piece by piece, special tokens left out.

    The pieces and the final `flush` joined are `tokenizer.decode(tokens, skip_special_tokens=True)`. A character whose
    bytes are spread over several tokens comes with the last of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.decode, self.pieces = decoder_of(tokenizer), pieces_of(tokenizer)
        # The last finished piece is decoded again with what follows: spaces depend on the token before.
        self.window: list[int] = []
        self.finished = 0
        self.shown = ""

    def push(self, token: int) -> str:
        """The text that `token` adds; empty while a character is unfinished."""
        known = self.known([token])
        if known is not None:
            return known
        self.window.append(token)
        text = self.decode(self.window)
        if len(text) <= len(self.shown) or text.endswith(UNFINISHED):
            return ""
        delta = text[len(self.shown) :]
        self.window = self.window[self.finished :]
        self.finished = len(self.window)
        self.shown = self.decode(self.window)
        return delta

    def push_all(self, tokens: list[int]) -> str:
        """The text that `tokens` add, as `push` of one after the other gives it together.

        Decoded at once where the last one is a piece of its own: no special token, and no part of a character.
        """
        known = self.known(tokens)
        if known is not None:
            return known
        last = self.decode(tokens[-1:]) if len(tokens) > 1 else ""
        text = self.decode(self.window + tokens) if last and UNFINISHED not in last else ""
        if len(text) <= len(self.shown):
            return "".join([self.push(token) for token in tokens])
        delta = text[len(self.shown) :]
        self.window, self.finished, self.shown = tokens[-1:], 1, last
        return delta

    def known(self, tokens: Sequence[int]) -> str | None:
        """Their text where each is a piece of its own and nothing before them is unfinished; none elsewhere.

        The tokenizer's own decoding takes a while between two forwards, when none of its code is in a cache.
        """
        if self.pieces is None or len(self.window) > self.finished:
            return None
        texts = [self.pieces[token] for token in tokens]
        return None if None in texts else "".join(texts)

    def flush(self) -> str:
        """What is left at the end of the text: an unfinished character as its replacement."""
        delta = self.decode(self.window)[len(self.shown) :]
        self.window, self.finished, self.shown = [], 0, ""
        return delta


def backend_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """What decodes just as `tokenizer` does, but quicker; none where it adds something of its own."""
    cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)
    return tokenizer.backend_tokenizer if tokenizer.is_fast and not cleans else None


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], str]:
    """The quickest call that decodes as `tokenizer.decode` does, special tokens left out."""
    quickest = backend_of(tokenizer) or tokenizer
    return lambda tokens: quickest.decode(tokens, skip_special_tokens=True)


class Pieces(dict[int, str | None]):
    """The text of each token alone; none for a part of a character. Decoded when first asked for."""

    def __init__(self, decode: Callable[[list[int]], str]):
        self.decode = decode

    def __missing__(self, token: int) -> str | None:
        text = self.decode([token])
        self[token] = None if UNFINISHED in text else text
        return self[token]


known_pieces: WeakKeyDictionary[PreTrainedTokenizerBase, Pieces] = WeakKeyDictionary()


def pieces_of(tokenizer: PreTrainedTokenizerBase) -> Pieces | None:
    """Texts of `tokenizer`'s tokens where together they decode to one after the other; none elsewhere.

    So do those at byte level: their bytes are joined and read as UTF-8. Others drop or add spaces by what is before.
    """
    backend = backend_of(tokenizer)
    if backend is None or not isinstance(backend.decoder, ByteLevel):
        return None
    if tokenizer not in known_pieces:
        # Its decoder holds the backend alone: the tokenizer would keep its own entry alive.
        known_pieces[tokenizer] = Pieces(decoder_of(tokenizer))
    return known_pieces[tokenizer]
