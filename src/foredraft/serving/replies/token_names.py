"""What single tokens are called in replies: their text, and their bytes."""

import json

from transformers import PreTrainedTokenizerBase

from foredraft.drafters.token_text import MARKER, READABLE, byte_of, decoder_kinds, is_byte_token


class TokenNames:
    """Text and bytes of tokens by id; without a tokenizer a token is called by its number.

    The text is the token's alone, its leading space included; part of a character is shown as a replacement.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None):
        self.tokenizer = tokenizer
        self.kinds: set[str] = set()
        self.added: dict[int, str] = {}
        if tokenizer is not None:
            self.added = {i: token.content for i, token in tokenizer.added_tokens_decoder.items()}
        if tokenizer is not None and tokenizer.is_fast and tokenizer.backend_tokenizer.decoder is not None:
            self.kinds = decoder_kinds(json.loads(tokenizer.backend_tokenizer.decoder.__getstate__()))
        self.known: dict[int, bytes] = {}

    def bytes(self, token: int) -> bytes:
        if token not in self.known:
            self.known[token] = self.read(token)
        return self.known[token]

    def text(self, token: int) -> str:
        return self.bytes(token).decode("utf-8", "replace")

    def unique_text(self, token: int) -> str:
        """The text, or the bytes spelled out where they are no text, so that few tokens share a name."""
        own = self.bytes(token)
        try:
            return own.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in own)

    def read(self, token: int) -> bytes:
        if token in self.added:
            return self.added[token].encode()
        name = self.tokenizer.convert_ids_to_tokens(token) if self.tokenizer is not None else None
        if name is None:
            return f"token_id:{token}".encode()
        if "ByteLevel" in self.kinds and byte_of.keys() >= set(name):
            return bytes(byte_of[character] for character in name)
        if READABLE & self.kinds and "ByteLevel" not in self.kinds:
            return bytes([int(name[3:5], 16)]) if is_byte_token(name) else name.replace(MARKER, " ").encode()
        return self.tokenizer.decode([token]).encode()
