"""Names a caller may give, and the answer to one that is not among them."""

import difflib

from foredraft.core.errors import require


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless `value` is one of `known`."""
    require(value in known, unknown(name, value, known))


def unknown(what: str, value: str, known) -> str:
    """A message for a name that is not one of `known`, with the nearest one that is."""
    near = difflib.get_close_matches(str(value), list(known), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(sorted(known))}"
    return f"{what} {value!r} is not known{hint}"
