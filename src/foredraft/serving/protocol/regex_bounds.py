"""How large a regular expression is once its counted repetitions are unrolled, without compiling it."""

import re
from dataclasses import dataclass

from foredraft.core.errors import require
from foredraft.serving.protocol.limits import Limits

TOKEN = re.compile(  # what a pattern is read in: anything else is one plain character
    r"""\\[pPxuU]\{[^}]*\}?                          # a class by its Unicode name, a character by its number
      | \\.                                          # another escape
      | \[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]  # a class
      | \[.*                                         # one that never ends
      | \{\s*(?P<low>\d+)\s*(?:,\s*(?P<high>\d*)\s*)?\}  # a counted repetition
      | (?P<open>\()
      | (?P<close>\))
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class RegexSize:
    """Size of a regular expression.

    Attributes:
        depth: Levels of groups.
        repeats: Characters and classes it holds once counted repetitions are unrolled; open ones count their least.
    """

    depth: int
    repeats: int


def regex_size(pattern: str) -> RegexSize:
    """The size of `pattern`; one that is no regular expression has some size too, its compiler refuses it."""
    groups, last, depth = [0], 0, 0  # unrolled size of each open group; size of the item that a count would repeat
    place = 0
    while place < len(pattern):
        found = TOKEN.match(pattern, place)
        place = found.end() if found else place + 1
        kind = found.lastgroup if found else None
        if kind == "open":
            groups.append(0)
            depth = max(depth, len(groups) - 1)
        elif kind in ("low", "high"):
            copies = max(int(found["low"][:9]), int((found["high"] or "0")[:9]), 1)
            groups[-1] += last * (copies - 1)
            last *= copies
        else:
            last = max(groups.pop(), 1) if kind == "close" and len(groups) > 1 else 1
            groups[-1] += last
    return RegexSize(depth, sum(groups))


def check_regex(name: str, pattern: str, limits: Limits) -> None:
    """Raise `ConfigError` naming the field and the limit for a regular expression that is too complex."""
    size = len(pattern.encode())
    most = limits.max_regex_bytes
    require(size <= most, f"{name} has {size} bytes; a regular expression may have {most}")
    measured = regex_size(pattern)
    depth, repeats = limits.max_regex_depth, limits.max_repeats
    require(measured.depth <= depth, f"{name} nests {measured.depth} groups; it may nest {depth}")
    require(
        measured.repeats <= repeats,
        f"{name} unrolls to {measured.repeats} characters by its counted repetitions; it may unroll to {repeats}",
    )
