"""Flags of every training method in one place: an option of another method is refused, never passed over."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, field, fields, make_dataclass
from typing import Any

from foredraft.cli.flags import flags_of
from foredraft.core.errors import require
from foredraft.training.methods.method import BUILT_IN, find_method


def owners() -> dict[str, list[str]]:
    """The methods that know each option."""
    found: dict[str, list[str]] = {}
    for method in BUILT_IN:
        for option in fields(find_method(method).options):
            found.setdefault(option.name, []).append(method)
    return found


def method_flags() -> type:
    """A dataclass with a flag for every option of every method; its help says whose it is."""
    known = {name: [option_of(method, name) for method in methods] for name, methods in owners().items()}
    members = [(name, options[0].type, field(default=None)) for name, options in known.items()]
    merged = make_dataclass("MethodOptions", members, kw_only=True, frozen=True)
    lines = [f"    {name}: {described(name, methods)}" for name, methods in owners().items()]
    merged.__doc__ = "\n".join(["Options of the method.", "", "Attributes:", *lines])
    return flags_of(merged)


def option_of(method: str, name: str) -> Field:
    return next(option for option in fields(find_method(method).options) if option.name == name)


def described(name: str, methods: list[str]) -> str:
    """What an option is to each method that knows it, and its default there."""
    told: dict[str, list[str]] = {}
    for method in methods:
        told.setdefault(help_of(method, name), []).append(method + default_of(option_of(method, name)))
    return " ".join(f"{text} [{', '.join(owners)}]" for text, owners in told.items())


def help_of(method: str, name: str) -> str:
    """What the docstring of a method's options says of one."""
    told = re.search(rf"^ {{8}}{name}: (.*(?:\n {{9,}}.*)*)", find_method(method).options.__doc__, re.MULTILINE)
    return " ".join(told[1].split())


def default_of(option: Field) -> str:
    silent = any(option.default is value for value in (None, False, MISSING))
    return "" if silent else f": {option.default}"


def options_for(method: str, values: Mapping[str, Any]) -> Any:
    """The options of `method` with `values`. Raises `ConfigError` for one it does not know."""
    options, known = find_method(method).options, owners()
    own = {option.name for option in fields(options)}
    for name in values:
        flag = f"--{name.replace('_', '-')}"
        require(name in own, f"{flag} is no option of method {method!r}; it is one of {', '.join(known[name])}")
    return options(**values)
