"""Functions a model may call, and which of them it shall."""

from typing import Any, Literal

from pydantic import Field, model_validator

from foredraft.serving.protocol.request_part import Name, RequestPart, Text, require_kind


class Function(RequestPart):
    """A function a model may call."""

    name: Name
    description: Text | None = None
    parameters: dict[str, Any] | None = Field(default=None, description="JSON schema of its arguments.")
    strict: bool | None = Field(default=None, description="Whether arguments must fulfil the schema.")


class Tool(RequestPart):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    @model_validator(mode="before")
    @classmethod
    def of_functions(cls, values: Any) -> Any:
        return require_kind(values, "function", "functions are the only kind of tool here")


class NamedFunction(RequestPart):
    name: Name


class NamedTool(RequestPart):
    """The one function that shall be called."""

    type: Literal["function"]
    function: NamedFunction

    @model_validator(mode="before")
    @classmethod
    def of_functions(cls, values: Any) -> Any:
        return require_kind(values, "function", "give none, auto, required or one function")


ToolChoice = Literal["none", "auto", "required"] | NamedTool
