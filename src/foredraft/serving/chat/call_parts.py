"""What a model's answer consists of once its tool calls are told from its text."""

import secrets
import string
from dataclasses import dataclass, field

CALL_ID_LENGTH = 24
CALL_ID_ALPHABET = string.ascii_letters + string.digits


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(CALL_ID_ALPHABET) for _ in range(CALL_ID_LENGTH))


@dataclass(frozen=True, kw_only=True, slots=True)
class ContentPart:
    """A piece of the answer's own text.

    Attributes:
        text: The piece, never empty.
        end: Characters of the model's text that were read when it was told.
    """

    text: str
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPart:
    """The beginning of a tool call, or a piece of its arguments.

    Attributes:
        index: Which call of the answer, from 0.
        end: Characters of the model's text that were read when it was told.
        id, name: Given at the beginning alone.
        arguments: A piece of JSON text; empty at the beginning.
    """

    index: int
    end: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One whole tool call.

    Attributes:
        name: A tool that was offered.
        arguments: JSON text; without its end where the model broke off.
        id: Random, for the client to answer to.
    """

    name: str
    arguments: str
    id: str = field(default_factory=new_call_id, compare=False)


Part = ContentPart | CallPart


def assemble(parts: list[Part]) -> tuple[str, list[ToolCall]]:
    """Content and calls of a whole answer."""
    content = "".join(part.text for part in parts if isinstance(part, ContentPart))
    calls = [part for part in parts if isinstance(part, CallPart)]
    begun = [part for part in calls if part.name is not None]
    arguments = ["".join(part.arguments for part in calls if part.index == start.index) for start in begun]
    return content, [
        ToolCall(id=start.id, name=start.name, arguments=text) for start, text in zip(begun, arguments, strict=True)
    ]
