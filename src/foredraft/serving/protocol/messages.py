"""Messages of a conversation, by role. Their contents are text; other kinds of content are refused by name."""

from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from foredraft.serving.protocol.request_part import RequestPart, Text, refused, require_kind, several, unsupported


class TextPart(RequestPart):
    """A part of a content."""

    type: Literal["text"]
    text: Text

    @model_validator(mode="before")
    @classmethod
    def of_text(cls, values: Any) -> Any:
        return require_kind(values, "text", "this server reads parts of type text only")


Content = Text | several(TextPart, least=1)


def text_of(content: str | list[TextPart] | None) -> str | None:
    """A content as one string: parts follow each other without anything between."""
    return "".join(part.text for part in content) if isinstance(content, list) else content


class Message(RequestPart):
    """One message.

    Attributes:
        content: Text, or parts of it.
        name: A label of who speaks, for templates that show it.
    """

    content: Content
    name: Text | None = None

    @property
    def text(self) -> str | None:
        """The content as one string; none for an assistant that only called tools."""
        return text_of(self.content)


class SystemMessage(Message):
    role: Literal["system"]


class DeveloperMessage(Message):
    role: Literal["developer"]


class UserMessage(Message):
    role: Literal["user"]


class CalledFunction(RequestPart):
    """A function that was called, and its arguments as JSON text."""

    name: Text
    arguments: Text


class CalledTool(RequestPart):
    """A tool call that the assistant made."""

    id: Text
    type: Literal["function"]
    function: CalledFunction


class AssistantMessage(Message):
    """What the assistant said, or the tools it called, or both."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
                {"required": ["tool_calls"], "properties": {"tool_calls": {"type": "array", "minItems": 1}}},
            ]
        }
    )

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: several(CalledTool) | None = None
    refusal: unsupported("send what the assistant said as content") = None
    audio: unsupported("messages hold text only") = None
    function_call: unsupported("use tool_calls") = None
    annotations: unsupported("messages hold text only", []) = None

    @model_validator(mode="after")
    def says_something(self) -> Self:
        if self.content is None and not self.tool_calls:
            raise refused("is missing; only an assistant that calls tools needs none", field="content")
        return self


class ToolMessage(Message):
    """What a tool call gave."""

    role: Literal["tool"]
    tool_call_id: Text


AnyMessage = Annotated[
    SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")
]
