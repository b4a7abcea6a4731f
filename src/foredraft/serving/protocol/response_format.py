"""What form an answer shall have."""

from typing import Annotated, Any, Literal

from pydantic import Field

from foredraft.serving.protocol.request_part import Name, RequestPart, Text


class TextFormat(RequestPart):
    """Any text."""

    type: Literal["text"]


class JsonObjectFormat(RequestPart):
    """Any JSON object."""

    type: Literal["json_object"]


class NamedSchema(RequestPart):
    """A JSON schema. The answer fulfils it by force, whether `strict` is set or not."""

    name: Name
    description: Text | None = None
    definition: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class JsonSchemaFormat(RequestPart):
    """A JSON value that fulfils a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]
