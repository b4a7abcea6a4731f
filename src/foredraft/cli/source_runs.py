"""Which drafter each piece of streamed text came from."""

from collections import deque

from foredraft.engine.output import TokenEvent
from foredraft.sampling.detokenizer import Detokenizer

Run = tuple[str, str | None]  # text, and the drafter of its tokens; none where the target chose them itself


class SourceRuns:
    """Splits the text of one continuation's events into runs of one source each.

    Text may come later than its tokens: a character is finished by its last token, and what might begin a stop string
    is held back. So the length each token adds is remembered until the events release as much text.
    """

    def __init__(self, detokenizer: Detokenizer):
        self.detokenizer = detokenizer
        self.owed: deque[tuple[int, str | None]] = deque()  # characters not yet released, and their source

    def split(self, event: TokenEvent) -> list[Run]:
        """The runs that make up `event.text`, in order."""
        for token, source in zip(event.tokens, event.sources, strict=True):
            self.owed.append((len(self.detokenizer.push(token)), source))
        runs: list[Run] = []
        start = 0
        while start < len(event.text):
            size, source = self.owed.popleft() if self.owed else (len(event.text), None)
            shown = min(size, len(event.text) - start)
            if shown < size:
                self.owed.appendleft((size - shown, source))
            runs = joined(runs, event.text[start : start + shown], source)
            start += shown
        return runs


def joined(runs: list[Run], text: str, source: str | None) -> list[Run]:
    """`runs` with `text` added, to the last run where that has the same source."""
    if not text:
        return runs
    if runs and runs[-1][1] == source:
        return [*runs[:-1], (runs[-1][0] + text, source)]
    return [*runs, (text, source)]
