"""The body of /v1/chat/completions."""

from typing import Literal, Self

from pydantic import Field, model_validator

from foredraft.serving.protocol.common_fields import CommonFields
from foredraft.serving.protocol.limits import DEFAULTS
from foredraft.serving.protocol.messages import AnyMessage, Content, text_of
from foredraft.serving.protocol.request_part import RequestPart, Text, count, refused, several, unsupported
from foredraft.serving.protocol.response_format import JsonObjectFormat, JsonSchemaFormat, ResponseFormat
from foredraft.serving.protocol.tools import NamedTool, Tool, ToolChoice

MAX_TOP_LOGPROBS = 20


class Prediction(RequestPart):
    """A text that much of the answer is expected to repeat; it makes the answer faster, not different."""

    type: Literal["content"]
    content: Content

    @property
    def text(self) -> str:
        return text_of(self.content)


class ChatRequest(CommonFields):
    """A conversation to be continued by the assistant."""

    messages: several(AnyMessage, DEFAULTS.max_messages, least=1)
    max_tokens: count(1, DEFAULTS.max_tokens) | None = Field(
        default=None, description="Most tokens to write; as many as the context still holds where none is given."
    )
    max_completion_tokens: count(1, DEFAULTS.max_tokens) | None = Field(
        default=None, description="OpenAI's newer name of max_tokens."
    )
    logprobs: bool | None = Field(default=None, description="Report the log-probability of each written token.")
    top_logprobs: count(0, MAX_TOP_LOGPROBS) | None = Field(
        default=None, description="And of this many likeliest ones; only with logprobs."
    )
    response_format: ResponseFormat | None = None
    tools: several(Tool, DEFAULTS.max_tools) | None = None
    tool_choice: ToolChoice | None = Field(default=None, description="auto where tools are given, none otherwise.")
    parallel_tool_calls: bool | None = Field(default=None, description="false allows one call at most.")
    prediction: Prediction | None = None
    safety_identifier: Text | None = Field(default=None, description="A label; nothing depends on it.")
    prompt_cache_key: Text | None = Field(
        default=None, description="A label: prompts that begin alike share their cache without it."
    )

    audio: unsupported("this server writes text only") = None
    function_call: unsupported("use tool_choice") = None
    functions: unsupported("use tools") = None
    metadata: unsupported("completions are not stored, so there is nothing to label") = None
    modalities: unsupported("this server writes text only", ["text"]) = None
    moderation: unsupported("this server moderates nothing") = None
    prompt_cache_options: unsupported("how long prompts stay cached cannot be chosen") = None
    prompt_cache_retention: unsupported("how long prompts stay cached cannot be chosen", "in_memory") = None
    reasoning_effort: unsupported("how long a model thinks cannot be chosen") = None
    service_tier: unsupported("there is one tier; order requests by priority", "auto", "default") = None
    store: unsupported("completions are not stored", False) = None
    verbosity: unsupported("how much a model says cannot be chosen; use max_tokens") = None
    web_search_options: unsupported("this server does not search the web") = None

    @model_validator(mode="after")
    def of_one_mind(self) -> Self:
        """Refuse fields that contradict each other."""
        both = self.max_tokens is not None and self.max_completion_tokens is not None
        if both and self.max_tokens != self.max_completion_tokens:
            raise refused("differs from max_tokens; give one of them", field="max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise refused("is given without logprobs; set logprobs to true or leave it out", field="top_logprobs")
        if self.prediction is not None and self.speculation is not None:
            clash = self.speculation.enabled is False or self.speculation.prediction is not None
            if clash:
                raise refused("is given, and speculation says otherwise; leave out one of them", field="prediction")
        if self.form is not None and self.guided_json is not None:
            raise refused("is given beside response_format; leave out one of them", field="guided_json")
        return self

    @model_validator(mode="after")
    def of_callable_tools(self) -> Self:
        """Refuse a choice of tools that cannot be kept."""
        forced, names = self.calls_forced, [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise refused("names a function twice", field="tools")
        if forced and not names:
            raise refused("asks for a call, but no tools are given", field="tool_choice")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise refused("is not among tools", field="tool_choice.function.name")
        guide = self.guide
        if guide is not None and self.calls_possible:
            raise refused("cannot be kept beside tools; set tool_choice to none or leave it out", field=guide)
        return self

    @property
    def form(self) -> JsonObjectFormat | JsonSchemaFormat | None:
        """The form the answer shall have, none where it is free text."""
        return self.response_format if isinstance(self.response_format, JsonObjectFormat | JsonSchemaFormat) else None

    @property
    def guide(self) -> str | None:
        """The field that the whole text shall follow, none where it is free."""
        guided = ("guided_json", "guided_regex", "guided_grammar")
        given = next((name for name in guided if getattr(self, name) is not None), None)
        return "response_format" if self.form is not None else given

    @property
    def calls_possible(self) -> bool:
        """Whether the model may call tools."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def calls_forced(self) -> bool:
        """Whether the model must call one."""
        return self.tool_choice == "required" or isinstance(self.tool_choice, NamedTool)

    @property
    def tokens_field(self) -> str:
        """The field that bounds how much is written."""
        return "max_completion_tokens" if self.max_completion_tokens is not None else "max_tokens"
