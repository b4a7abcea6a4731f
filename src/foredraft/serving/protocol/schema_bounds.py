"""How complex a JSON schema may be, checked before anybody compiles it."""

import json
from collections.abc import Iterator
from decimal import Decimal
from math import isfinite, lcm
from typing import Any

from foredraft.core.errors import ConfigError, require
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.regex_bounds import check_regex

COUNTS = {"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties", "minContains"}
REFERENCES = {"$ref", "$dynamicRef", "$recursiveRef"}
PATTERNS = {"pattern", "whitespace_pattern", "item_separator", "key_separator"}


def parsed_schema(name: str, text: str, limits: Limits) -> Any:
    """The schema that `text` spells. Raises `ConfigError` naming the field where it is too long or no JSON."""
    require_bytes(name, len(text.encode()), limits)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON: {error.msg} at character {error.pos}") from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{name} is JSON that nests too deeply or holds too long a number") from None


def check_schema(name: str, schema: Any, limits: Limits) -> None:
    """Raise `ConfigError` naming the field and the limit for a schema that is too complex, or that is not all here."""
    divisors = 1
    for nodes, (depth, key, value) in enumerate(walk(schema), start=1):
        most = limits.max_schema_nodes
        require(nodes <= most, f"{name} holds more than {most} values; a schema may hold {most}")
        deepest = limits.max_schema_depth
        require(depth <= deepest, f"{name} nests more than {deepest} levels; a schema may nest {deepest}")
        check_value(name, key, value, limits)
        if key == "multipleOf" and is_number(value):
            divisors = lcm(divisors, coefficient(value))
            most = limits.max_divisor
            require(divisors <= most, f"{name} asks for multiples of {value}; divisors together may make {most}")
    require_bytes(name, schema_bytes(schema), limits)


def schema_bytes(schema: Any) -> int:
    """Bytes of a schema as JSON; it must not nest deeper than the limits allow."""
    return len(json.dumps(schema, ensure_ascii=False).encode())


def require_bytes(name: str, size: int, limits: Limits) -> None:
    most = limits.max_schema_bytes
    require(size <= most, f"{name} has {size} bytes; a schema may have {most}")


def walk(schema: Any) -> Iterator[tuple[int, str | None, Any]]:
    """Every value of a schema with its level and the key it stands under."""
    waiting: list[tuple[int, str | None, Any]] = [(0, None, schema)]
    while waiting:
        depth, key, value = waiting.pop()
        yield depth, key, value
        if isinstance(value, dict):
            waiting += [(depth + 1, name, each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [(depth + 1, None, each) for each in value]


def check_value(name: str, key: str | None, value: Any, limits: Limits) -> None:
    """Raise `ConfigError` for a value that costs too much where it stands under `key`."""
    if isinstance(value, dict):
        for own in value:
            require_whole(name, own)
        patterns = value if key == "patternProperties" else ()
        for pattern in patterns:
            check_regex(f"{name}: a pattern of patternProperties", pattern, limits)
    elif isinstance(value, str):
        require_whole(name, value)
        if key in PATTERNS:
            check_regex(f"{name}: {key}", value, limits)
        here = key not in REFERENCES or value.startswith("#")
        require(here, f"{name} refers to {value[:80]!r}; nothing is fetched, write it out under $defs")
    elif is_number(value):
        require(isfinite(value), f"{name} holds {value}; JSON has finite numbers only")
        most = limits.max_repeats
        require(key not in COUNTS or value <= most, f"{name}: {key} is {value}; it must be at most {most}")


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def coefficient(divisor: float) -> int:
    """The digits of a divisor as a whole number: 25 for 0.25, and 1 for 0, which divides nothing."""
    _, digits, exponent = Decimal(repr(divisor)).normalize().as_tuple()
    whole = int("".join(map(str, digits)))
    return max(whole * 10 ** max(exponent, 0), 1)


def require_whole(name: str, text: str) -> None:
    """Raise `ConfigError` for text that UTF-8 cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} holds half a surrogate pair; send whole characters") from None
