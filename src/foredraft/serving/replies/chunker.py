"""Text cut into the chunks a stream is asked for: as it comes, words or sentences."""

import re

CLOSERS = "\"'”’»)\\]}」』）】》〉"
WORD = re.compile(r"\s*\S+\s")
SENTENCE = re.compile(
    rf"""(?P<stop> [.!?…]+ ) [{CLOSERS}]* \s  # white space tells the end of a sentence from a point inside a word
    | [。！？｡．]+ [{CLOSERS}]* (?=[^。！？｡．{CLOSERS}])  # needs none, but what closes it must have come
    | \n[^\S\n]*\n  # a paragraph""",
    re.VERBOSE,
)
LAST_WORD = re.compile(r"[^\s(\[{\"'“‘«]*$")
NUMBERED = re.compile(r"(^|\n)\s*(\d+|[A-Za-z])$")  # of an item of a list
ABBREVIATION = re.compile(
    r"mrs?|ms|dr|prof|st|sr|jr|vs|e\.g|i\.e|cf|figs?|eqs?|nos|vols?|pp|al|approx|ca|inc|ltd|corp|dept|gen|col|sgt|lt"
    r"|capt|rev|hon|gov|sen|rep|jan|feb|apr|jun|jul|aug|sept?|oct|nov|dec|[ap]\.m|u\.[skn]|z\.b|d\.h|bzw|usw|ggf",
    re.IGNORECASE,
)


class Chunker:
    """Gathers text until a chunk is whole; what it gives joins to the text.

    Where chunks end does not depend on how the text comes. A word ends with the white space behind it. So does a
    sentence, unless its point belongs to an abbreviation, an initial or the number of a list's item.

    Args:
        kind: token (as it comes), word or sentence.
    """

    def __init__(self, kind: str):
        self.next = {"token": len, "word": self.end_of_word, "sentence": self.end_of_sentence}[kind]
        self.held = ""

    def push(self, text: str) -> list[str]:
        """Take more text; returns the chunks that are whole now."""
        self.held += text
        chunks = []
        while end := self.next(self.held):
            chunks.append(self.held[:end])
            self.held = self.held[end:]
        return chunks

    def flush(self) -> str:
        """What is left, though it is no whole chunk."""
        rest, self.held = self.held, ""
        return rest

    @staticmethod
    def end_of_word(text: str) -> int:
        found = WORD.match(text)
        return found.end() if found else 0

    @staticmethod
    def end_of_sentence(text: str) -> int:
        ends = (found.end() for found in SENTENCE.finditer(text) if text[: found.end()].strip() and ends_here(found))
        return next(ends, 0)


def ends_here(found: re.Match) -> bool:
    """Whether the mark that was found ends a sentence."""
    if found["stop"] != ".":
        return True
    before = found.string[: found.start()]
    word = LAST_WORD.search(before)[0]
    initial = len(word) == 1 and word.isupper() and word != "I"
    return not (initial or ABBREVIATION.fullmatch(word) or NUMBERED.search(before))
