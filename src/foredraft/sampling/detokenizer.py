"""Text of tokens as they are written."""

from collections.abc import Callable

from transformers import PreTrainedTokenizerBase

UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class Detokenizer:
    """Turns output tokens into text piece by piece, special tokens left out.

    The pieces and the final `flush` joined are `tokenizer.decode(tokens, skip_special_tokens=True)`. A character whose
    bytes are spread over several tokens comes with the last of them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.decode = decoder_of(tokenizer)
        # The last finished piece is decoded again with what follows: spaces depend on the token before.
        self.window: list[int] = []
        self.finished = 0
        self.shown = ""

    def push(self, token: int) -> str:
        """The text that `token` adds; empty while a character is unfinished."""
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
        last = self.decode(tokens[-1:]) if len(tokens) > 1 else ""
        text = self.decode(self.window + tokens) if last and UNFINISHED not in last else ""
        if len(text) <= len(self.shown):
            return "".join([self.push(token) for token in tokens])
        delta = text[len(self.shown) :]
        self.window, self.finished, self.shown = tokens[-1:], 1, last
        return delta

    def flush(self) -> str:
        """What is left at the end of the text: an unfinished character as its replacement."""
        delta = self.decode(self.window)[len(self.shown) :]
        self.window, self.finished, self.shown = [], 0, ""
        return delta


def decoder_of(tokenizer: PreTrainedTokenizerBase) -> Callable[[list[int]], str]:
    """The quickest call that decodes as `tokenizer.decode` does, special tokens left out."""
    cleans = getattr(tokenizer, "clean_up_tokenization_spaces", False)
    if tokenizer.is_fast and not cleans:
        backend = tokenizer.backend_tokenizer
        return lambda tokens: backend.decode(tokens, skip_special_tokens=True)
    return lambda tokens: tokenizer.decode(tokens, skip_special_tokens=True)
