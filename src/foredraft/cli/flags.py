"""Command-line flags made from the frozen config dataclasses: names, types, defaults and help come from there."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, fields, make_dataclass
from typing import Annotated, Any, get_args, get_origin

from cyclopts import Parameter, Token


def flags_of(config: type, *, names: Mapping[str, str] | None = None, omit: Collection[str] = ()) -> type:
    """A dataclass with a flag for every field of `config` but those in `omit`; `given` reads what was set.

    Each is none unless given, so that a value on the command line is told from a default. `names` holds the flag of
    each field that is not called by its own name.
    """
    shown = [field for field in fields(config) if field.name not in omit]
    members = [(field.name, flag_type(field, (names or {}).get(field.name)), None) for field in shown]
    flags = make_dataclass(f"{config.__name__}Flags", members, kw_only=True, frozen=True)
    flags.__doc__, flags.__module__ = config.__doc__, __name__  # cyclopts passes over classes of module `types`
    return flags


def given(flags: Any) -> dict[str, Any]:
    """The values that the command line set, by field."""
    values = {field.name: getattr(flags, field.name) for field in fields(flags)}
    return {name: value for name, value in values.items() if value is not None}


def flag_type(field: Field, name: str | None) -> Any:
    default = field.default if field.default is not MISSING else field.default_factory()
    show = False if default in (None, (), {}) or default is False else lambda _: str(default)
    parsed = Any if get_origin(field.type) is dict else field.type  # a dictionary is written as one JSON object
    return Annotated[parsed | None, Parameter(name=name, show_default=show, converter=converter(field.type))]


def converter(kind: Any) -> Callable[[type, Sequence[Token]], Any] | None:
    """How text becomes a value where cyclopts has no way of its own or, as with 1.5 for an int, too lenient a one."""
    if get_origin(kind) is dict:
        return lambda _, tokens: dictionary(tokens[0].value, *get_args(kind))
    if kind in (int, int | None):
        return lambda _, tokens: whole_number(tokens[0].value)
    if kind in (tuple[int, ...], tuple[int, ...] | None):
        return lambda _, tokens: tuple(whole_number(token.value) for token in tokens)
    return None


def whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a whole number") from None


def dictionary(text: str, key_type: type, value_type: type) -> dict:
    """A JSON object as a dictionary. Raises `ValueError` with what is wanted for any other text."""
    try:
        return {key_type(key): value_type(value) for key, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError):
        wanted = f'{{"{key_type.__name__}": {value_type.__name__}, ...}}'
        raise ValueError(f"{text!r} is not a JSON object {wanted}") from None
