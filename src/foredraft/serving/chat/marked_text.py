"""Markers of tool calls that are special tokens, put back into a text that has left them out."""

from collections import deque
from collections.abc import Mapping, Sequence


class MarkedText:
    """Adds to each piece of text the markers that stood between its tokens.

    Args:
        markers: Texts of special tokens by id.

    Attributes:
        shown: Characters of the text so far, without markers.
        written: Characters that its tokens stand for; text may lag behind them.
        waiting: Markers whose place the text has not reached, each with that place.
    """

    def __init__(self, markers: Mapping[int, str]):
        self.markers = markers
        self.shown, self.written = 0, 0
        self.waiting: deque[tuple[int, str]] = deque()

    def push(self, text: str, tokens: Sequence[int], pieces: Sequence[str]) -> str:
        """`text` with its markers; `tokens` were written with it, and each adds one of `pieces` to the text."""
        for token, piece in zip(tokens, pieces, strict=True):
            if token in self.markers:
                self.waiting.append((self.written, self.markers[token]))
            self.written += len(piece)
        marked = ""
        while self.waiting and self.waiting[0][0] <= self.shown + len(text):
            place, marker = self.waiting.popleft()
            marked += text[: place - self.shown] + marker
            text, self.shown = text[place - self.shown :], place
        self.shown += len(text)
        return marked + text
