"""What the engine hands back: pieces of text while it writes, a whole output at the end."""

from dataclasses import dataclass

from foredraft.core.outcome import SpeculationStatistics, TokenLogprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvent:
    """Tokens one step added to one request.

    Attributes:
        index, sample: Which prompt of the call, which of its `n` continuations.
        tokens: Their ids, in order.
        sources: The drafter of each, none where the target chose it itself.
        text: Text they release; may lag behind the tokens while a character or a stop string is incomplete.
        finish_reason: Set on the last event of a request.
    """

    index: int
    sample: int
    tokens: list[int]
    sources: list[str | None]
    text: str
    finish_reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutput:
    """One finished continuation.

    Attributes:
        index, sample: Which prompt of the call, which of its `n` continuations.
        prompt_token_ids, token_ids: Prompt and output.
        text: The output as text, up to a stop string or stop token; empty for a target without a tokenizer.
        finish_reason: stop or length.
        seed: The seed that gives this text again.
        drafter: The drafting method.
        lossless: Whether its acceptance rule keeps the target's law.
        sources: The drafter of each output token, none where the target chose it itself.
        logprobs: One entry a token where the parameters ask for them.
        statistics: Counts and times of its speculation.
        seconds: From its first step to its last.
        first_token_seconds: From its first step to its first token.
    """

    index: int
    sample: int
    prompt_token_ids: list[int]
    token_ids: list[int]
    text: str
    finish_reason: str
    seed: int
    drafter: str
    lossless: bool
    sources: list[str | None]
    logprobs: list[TokenLogprobs] | None
    statistics: SpeculationStatistics
    seconds: float
    first_token_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0
