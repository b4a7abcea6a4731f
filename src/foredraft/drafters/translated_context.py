"""One request's text in the tokens of a draft model that has another vocabulary."""

from codecs import getincrementaldecoder

from foredraft.drafters.vocabulary_bridge import VocabularyBridge

LOOK_BEHIND = 16  # draft tokens before new text that are read again with it


class TranslatedContext:
    """Follows the target's tokens and keeps the draft model's tokens for the same text.

    Only new text is encoded, with a few tokens before it: a word that has grown may be cut otherwise than before. Which
    tokens stand for a text decides how good drafts are, never what is written.

    Attributes:
        seen: Target tokens read.
        text: Their text as far as its characters are complete, without those the draft model cannot write.
        spans: Draft token, start and end of its characters in `text`, for each token.
        start: First draft token the draft model still sees; it moves on when its context is full.
    """

    def __init__(self, bridge: VocabularyBridge):
        self.bridge = bridge
        self.decoder = getincrementaldecoder("utf-8")("replace")
        self.seen, self.text, self.start = 0, "", 0
        self.spans: list[tuple[int, int, int]] = []

    def read(self, tokens: list[int]) -> None:
        """Take in the target's tokens from `seen` on."""
        fresh = tokens[self.seen :]
        data = b"".join([self.bridge.draft_pieces[token] for token in fresh])
        text = self.decoder.decode(data if self.seen else self.opened(fresh, data))
        self.seen = len(tokens)
        if text := self.bridge.draft.known(text):
            self.text += text
            self.encode_tail()

    def opened(self, tokens: list[int], data: bytes) -> bytes:
        """The first text as the draft model's own tokenizer would begin it."""
        target, draft = self.bridge.target, self.bridge.draft
        specials = next((i for i, token in enumerate(tokens) if token not in target.special), len(tokens))
        before = b"".join([self.bridge.draft_pieces[token] for token in tokens[:specials]])
        words = data[len(before) :]
        if target.adds_space:
            words = words.removeprefix(b" ")
        if draft.adds_space:
            words = b" " + words
        opening = draft.opening.encode()
        return (before if before.startswith(opening) else opening + before) + words

    def encode_tail(self) -> None:
        """Encode the end of the text again, from a little before what was known."""
        first = self.boundary(max(len(self.spans) - LOOK_BEHIND, 0))
        base = self.spans[first - 1][2] if first else 0
        fresh = [(token, start + base, end + base) for token, start, end in self.bridge.draft.encode(self.text[base:])]
        # How the first of them was cut knew nothing of what stands before, so the old tokens stay while they may.
        old, new = self.meeting(first, fresh) if first else (first, 0)
        self.spans = self.spans[:old] + fresh[new:]

    def boundary(self, token: int) -> int:
        """The first token from `token` on before which a character ends."""
        while not parted(self.spans, token):
            token += 1
        return token

    def meeting(self, first: int, fresh: list[tuple[int, int, int]]) -> tuple[int, int]:
        """Where the old tokens end and the fresh ones go on: past half of what was read again where both can."""
        starts = {start: i for i, (_, start, _) in enumerate(fresh) if parted(fresh, i)}
        for old in range(first + LOOK_BEHIND // 2, len(self.spans)):
            if parted(self.spans, old) and self.spans[old - 1][2] in starts:
                return old, starts[self.spans[old - 1][2]]
        return first, 0

    def view(self, room: int, limit: int) -> list[int]:
        """The draft model's tokens up to the last target token, with `room` left in a context of `limit`.

        When the context is full, the older half of what was seen goes. Empty where the text ends inside a character
        that cannot be told token by token, or nothing fits.
        """
        held = self.held()
        if held is None:
            return []
        tokens = [token for token, _, _ in self.spans[self.start :]] + held
        if len(tokens) + room > limit:
            self.start = max(len(self.spans) - limit // 2, 0)
            tokens = [token for token, _, _ in self.spans[self.start :]] + held
        return tokens if len(tokens) + room <= limit else []

    def held(self) -> list[int] | None:
        """Draft tokens for the bytes of an unfinished character; none where they have no tokens of their own."""
        left, _ = self.decoder.getstate()
        ids = self.bridge.draft.ids
        single = [ids.get(bytes([byte])) for byte in left]
        return None if None in single else single


def parted(spans: list[tuple[int, int, int]], token: int) -> bool:
    """Whether no character lies across the border before `token`."""
    return not 0 < token < len(spans) or spans[token - 1][2] <= spans[token][1]
