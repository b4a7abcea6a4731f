"""How complex a grammar in llguidance's form of Lark may be, checked before anybody compiles it."""

import json
import re
from collections.abc import Iterator
from typing import Any

from foredraft.core.errors import ConfigError, require
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.schema_bounds import check_schema, require_whole

WHITE = re.compile(r"\s+")
COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}|~(\d+)(?:\.\.(\d+))?")  # where there is no white space
BRACKETS = re.compile(r"[()\[\]{}]")
SCHEMA = re.compile(r"%json\s*")


def check_grammar(name: str, text: str, limits: Limits) -> None:
    """Raise `ConfigError` naming the field and the limit for a grammar that is too complex, its schemas included."""
    require_whole(name, text)
    size, most = len(text.encode()), limits.max_grammar_bytes
    require(size <= most, f"{name} has {size} bytes; a grammar may have {most}")
    depth, deepest = nesting(text), limits.max_schema_depth
    require(depth <= deepest, f"{name} nests {depth} brackets; it may nest {deepest}")
    largest, most = largest_count(text), limits.max_repeats
    require(largest <= most, f"{name} repeats something {largest} times; it may repeat {most} times")
    try:
        for schema in schemas(text):
            check_schema(name, schema, limits)
    except RecursionError:
        raise ConfigError(f"{name} holds a schema that nests too deeply; it may nest {deepest} levels") from None


def nesting(text: str) -> int:
    """Most brackets that are open at once, whatever they stand for."""
    depth = deepest = 0
    for bracket in BRACKETS.findall(text):
        depth = max(depth + (1 if bracket in "([{" else -1), 0)
        deepest = max(deepest, depth)
    return deepest


def largest_count(text: str) -> int:
    """The largest count of a counted repetition, of terminals and regular expressions too."""
    found = COUNT.findall(WHITE.sub("", text))
    return max((int(digits[:9]) for counts in found for digits in counts if digits), default=0)


def schemas(text: str) -> Iterator[Any]:
    """The JSON schemas that stand in a grammar; what cannot be read is left to the grammar's compiler to refuse."""
    decoder = json.JSONDecoder()
    for found in SCHEMA.finditer(text):
        try:
            yield decoder.raw_decode(text, found.end())[0]
        except ValueError:
            continue
