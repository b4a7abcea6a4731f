"""The bodies of /tokenize and /detokenize."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from foredraft.serving.protocol.common_fields import TOKEN_IDS
from foredraft.serving.protocol.limits import DEFAULTS
from foredraft.serving.protocol.messages import AnyMessage
from foredraft.serving.protocol.request_part import RequestPart, Text, count, refused, several


class TokenizeRequest(RequestPart):
    """A text or a conversation to be read as tokens."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}}},
            ]
        }
    )

    model: Text | None = None
    prompt: Text | None = None
    messages: several(AnyMessage, DEFAULTS.max_messages, least=1) | None = None
    add_special_tokens: bool | None = Field(
        default=None, description="Whether the tokenizer adds its own; true by default for a text, false for messages."
    )
    return_token_strs: bool | None = Field(default=None, description="Return each token's text too.")

    @model_validator(mode="after")
    def of_one_text(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise refused("or messages must be given, and not both", field="prompt")
        return self


class DetokenizeRequest(RequestPart):
    """Token ids to be written as text."""

    model: Text | None = None
    tokens: several(count(0, TOKEN_IDS), 2**20)
