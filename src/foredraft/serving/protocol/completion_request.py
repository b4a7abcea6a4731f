"""The body of /v1/completions."""

from typing import Self

from pydantic import Field, model_validator

from foredraft.serving.protocol.common_fields import TOKEN_IDS, CommonFields
from foredraft.serving.protocol.limits import DEFAULTS
from foredraft.serving.protocol.request_part import NonEmpty, count, refused, several, unsupported

DEFAULT_TOKENS = 16  # as OpenAI
MAX_LOGPROBS = 20
TokenIds = several(count(0, TOKEN_IDS), least=1)


class CompletionRequest(CommonFields):
    """Prompts to be continued."""

    prompt: (
        NonEmpty
        | TokenIds
        | several(NonEmpty, DEFAULTS.max_prompts, least=1)
        | several(TokenIds, DEFAULTS.max_prompts, least=1)
    ) = Field(description="A text, a list of texts, token ids, or a list of lists of them.")
    max_tokens: count(0, DEFAULTS.max_tokens) | None = Field(
        default=None, description=f"Most tokens to write, {DEFAULT_TOKENS} by default; 0 only with echo."
    )
    echo: bool | None = Field(default=None, description="Repeat the prompt before the text.")
    logprobs: count(0, MAX_LOGPROBS) | None = Field(
        default=None, description="Report each token's log-probability and those of this many likeliest ones."
    )
    best_of: count(1, DEFAULTS.max_n) | None = Field(default=None, description="Only where it equals n.")

    suffix: unsupported("text is written behind a prompt, not between two") = None

    @model_validator(mode="after")
    def of_one_mind(self) -> Self:
        """Refuse fields that contradict each other."""
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise refused(f"is {self.best_of}; it must equal n: all continuations are returned", field="best_of")
        if self.max_tokens == 0 and not self.echo:
            raise refused("is 0, which asks for nothing; give at least 1, or set echo to true", field="max_tokens")
        if self.logprobs is not None and self.logprobs > MAX_LOGPROBS:
            raise refused(f"is {self.logprobs}; it must be at most {MAX_LOGPROBS}", field="logprobs")
        return self

    @property
    def prompts(self) -> list[str | list[int]]:
        """One prompt or many, as a list."""
        single = isinstance(self.prompt, str) or (bool(self.prompt) and isinstance(self.prompt[0], int))
        return [self.prompt] if single else list(self.prompt)

    @property
    def tokens_field(self) -> str:
        """The field that bounds how much is written."""
        return "max_tokens"
