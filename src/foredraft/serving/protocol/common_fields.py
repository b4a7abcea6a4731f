"""Fields that chat and completions share: OpenAI's, and ours beyond them."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from foredraft.serving.protocol.field_errors import brief
from foredraft.serving.protocol.limits import DEFAULTS
from foredraft.serving.protocol.request_part import (
    NonEmpty,
    RequestPart,
    Text,
    count,
    number,
    refused,
    several,
    unsupported,
)
from foredraft.serving.protocol.speculation_field import SpeculationField

TOKEN_ID = r"^[0-9]{1,9}$"  # a key of logit_bias
TOKEN_IDS = 2**31 - 1  # what a token id stays below, whatever the vocabulary
MAX_TIMEOUT = 86_400  # seconds
MAX_PRIORITY = 1000


class StreamOptions(RequestPart):
    """How a stream is sent."""

    include_usage: bool | None = Field(default=None, description="Send a last chunk that counts the tokens.")
    include_obfuscation: unsupported("chunks are not padded to hide their lengths", False) = None


def checked_biases(biases: Any) -> Any:
    """Refuse the first wrong entry of `logit_bias`; another type is left to pydantic."""
    if isinstance(biases, dict):
        for token, bias in biases.items():
            if not (token.isascii() and token.isdigit() and len(token) <= 9):
                raise refused("is no token id; keys of logit_bias are token ids, such as 42", field=token[:32])
            if isinstance(bias, bool) or not isinstance(bias, int | float):
                raise refused(f"is {brief(bias)}; it must be a number", field=token)
    return biases


LogitBias = Annotated[
    dict[str, float],
    BeforeValidator(checked_biases),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": TOKEN_ID},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": DEFAULTS.max_logit_bias,
        }
    ),
]


class CommonFields(RequestPart):
    """A request for text."""

    model: Text | None = Field(default=None, description="Name of the model; the server's own where none is given.")
    n: count(1, DEFAULTS.max_n) | None = Field(default=None, description="Continuations, 1 by default.")
    stop: NonEmpty | several(NonEmpty, DEFAULTS.max_stop) | None = Field(
        default=None, description="Strings that end the text; they are cut from it."
    )
    seed: count(0, 2**63 - 1) | None = Field(
        default=None, description="Same seed, same text, whatever else the server does."
    )
    temperature: number(0, 100) | None = Field(default=None, description="0 is greedy; 1 by default.")
    top_p: number(0, 1, open_low=True) | None = None
    presence_penalty: number(-2, 2) | None = None
    frequency_penalty: number(-2, 2) | None = None
    logit_bias: LogitBias | None = Field(default=None, description="Added to the logits of token ids.")
    stream: bool | None = Field(default=None, description="Send the text as server-sent events while it is written.")
    stream_options: StreamOptions | None = Field(default=None, description="Only with stream.")
    user: Text | None = Field(default=None, description="A label; nothing depends on it.")

    top_k: count(0) | None = Field(default=None, description="Keep the k likeliest tokens; 0 keeps all.")
    min_p: number(0, 1) | None = Field(
        default=None, description="Drop tokens below this share of the likeliest token's probability."
    )
    typical_p: number(0, 1, open_low=True) | None = Field(default=None, description="Locally typical sampling.")
    repetition_penalty: number(0, 1e6, open_low=True) | None = Field(default=None, description="1 is off.")
    min_tokens: count(0, DEFAULTS.max_tokens) | None = Field(
        default=None, description="Tokens to write before any stop counts."
    )
    ignore_eos: bool | None = Field(default=None, description="Write on past the model's end-of-text tokens.")
    stop_token_ids: several(count(0, TOKEN_IDS), DEFAULTS.max_stop) | None = Field(
        default=None, description="Token ids that end the text beside the model's own."
    )
    bad_words: several(NonEmpty, DEFAULTS.max_bad_words) | None = Field(
        default=None, description="Strings that must not be written."
    )
    guided_json: NonEmpty | dict[str, Any] | None = Field(
        default=None, description='A JSON schema, as an object or as text, that the text fulfils; or "object".'
    )
    guided_regex: NonEmpty | None = Field(
        default=None, description="A regular expression in Rust's syntax, which the whole text matches."
    )
    guided_grammar: NonEmpty | None = Field(
        default=None, description="A grammar in llguidance's form of Lark, which the text follows."
    )
    speculation: SpeculationField | None = Field(
        default=None, description="How to draft; the server's own way where nothing is given."
    )
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = Field(
        default=None, description="Requests of higher priority go first; 0 by default."
    )
    timeout: Annotated[float, Field(gt=0, le=MAX_TIMEOUT)] | None = Field(
        default=None, description="Seconds after which the text ends where it is."
    )
    stream_chunk: Literal["token", "word", "sentence"] | None = Field(
        default=None, description="What a streamed chunk holds: tokens as they come, whole words or whole sentences."
    )
    return_statistics: bool | None = Field(default=None, description="Report what speculation did for this request.")
    return_drafts: bool | None = Field(
        default=None, description="Stream the drafter of each token, and the drafts that were rejected."
    )

    @model_validator(mode="after")
    def of_streams_only(self) -> Self:
        asked = {
            "stream_options": self.stream_options is not None,
            "stream_chunk": self.stream_chunk not in (None, "token"),
            "return_drafts": bool(self.return_drafts),
        }
        for name, given in asked.items():
            if given and not self.stream:
                raise refused("is given without stream; set stream to true or leave it out", field=name)
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, none to many."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
