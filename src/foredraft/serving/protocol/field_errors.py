"""From what pydantic says of a body to one line that names the field, and shows nothing of what was written in it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PRIVATE = {"messages", "prompt", "prediction"}  # their contents are shown nowhere
SHOWN = {"role", "type"}  # except for these keys, which say what something is
MAX_VALUE = 80  # characters of a value shown
OWN = "foredraft"  # the type of errors whose message is written here, not by pydantic
EXPECTED = {  # what would have been right, where pydantic says it in terms of Python
    "string_type": "be a string",
    "string_unicode": "be text of whole characters",
    "int_type": "be a whole number",
    "float_type": "be a number",
    "finite_number": "be a finite number",
    "bool_type": "be true or false",
    "list_type": "be a list",
    "dict_type": "be an object",
    "model_type": "be an object",
    "model_attributes_type": "be an object",
    "too_short": "hold at least one entry",
}

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """What is wrong with a request.

    Attributes:
        param: Path of the field, such as messages.0.content; none where it is the body as a whole.
        message: One line.
    """

    param: str | None
    message: str


def first_problem(errors: Sequence[Mapping[str, Any]], body: Any) -> FieldProblem:
    """The problem to report: of what is wrong with the first wrong field, the one that lies deepest.

    Where a field may be of several kinds pydantic reports an error for each; the deepest belongs to the kind meant.
    """
    if errors[0]["type"] == "json_invalid":
        error = errors[0]
        return FieldProblem(None, f"the body is not JSON: {error['ctx']['error']} at character {error['loc'][-1]}")
    placed = [(place_of(error, body), error) for error in errors]
    field = placed[0][0][:1]
    same = [(place, error) for place, error in placed if place[:1] == field]
    deepest = max((place for place, _ in same), key=len)
    found = [error for place, error in same if place == deepest]
    own = [error for error in found if error["type"] == OWN]
    return problem(deepest, own or found)


def place_of(error: Mapping[str, Any], body: Any) -> Place:
    """Where in the body an error lies, without the names of kinds that pydantic puts between."""
    location, value, place = error["loc"], body, []
    if location[:1] != ("body",):
        return location[1:]
    for index, part in enumerate(location[1:], start=2):
        inside = holds(value, part)
        if inside or (index == len(location) and error["type"] == "missing"):
            place.append(part)
            value = value[part] if inside else None
    added = {"union_tag_invalid": "discriminator", "union_tag_not_found": "discriminator", OWN: "field"}
    last = (error.get("ctx") or {}).get(added.get(error["type"], ""))
    return (*place, *([str(last).strip("'")] if last else []))


def holds(value: Any, part: str | int) -> bool:
    if isinstance(value, dict):
        return part in value
    return isinstance(value, list) and isinstance(part, int) and 0 <= part < len(value)


def problem(place: Place, errors: Sequence[Mapping[str, Any]]) -> FieldProblem:
    name, error = ".".join(map(str, place)), errors[0]
    if not place:
        return FieldProblem(None, "the body must be a JSON object, sent with Content-Type: application/json")
    if error["type"] == OWN:
        return FieldProblem(name, f"{name} {error['ctx']['problem']}")
    if error["type"] in ("missing", "union_tag_not_found"):
        return FieldProblem(name, f"{name} is missing")
    wanted = " or ".join(dict.fromkeys(map(expected, errors))).replace(" or be ", " or ")
    given = error["ctx"]["tag"] if error["type"] == "union_tag_invalid" else error.get("input")
    return FieldProblem(name, f"{name}{shown(place, given)} must {wanted}")


def expected(error: Mapping[str, Any]) -> str:
    """What an error says the value should do."""
    if error["type"] == "union_tag_invalid":
        return f"be one of {error['ctx']['expected_tags']}"
    return EXPECTED.get(error["type"], error["msg"].partition(" should ")[2] or "be right")


def shown(place: Place, value: Any) -> str:
    """The value at a place, as a part of a sentence; empty where it is not to be shown."""
    if PRIVATE & set(place) and not (place[-1] in SHOWN and isinstance(value, str)):
        return ""
    return f" is {brief(value)}; it"


def brief(value: Any) -> str:
    """A value in a few characters."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    text = json.dumps(value[:MAX_VALUE] if isinstance(value, str) else value, default=lambda _: "binary data")
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."
