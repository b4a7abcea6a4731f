"""What the engine hands back: pieces of text while it writes, a whole output at the end."""

from dataclasses import dataclass, field

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics, TokenLogprobs


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for every request of a step
class TokenEvent:
    """Tokens one step added to one request.

    Attributes:
        index, sample: Which prompt of the call, which of its `n` continuations.
        tokens: Their ids, in order.
        sources: The drafter of each, none where the target chose it itself.
        text: Text they release; may lag behind the tokens while a character or a stop string is incomplete.
        finish_reason: Set on the last event of a request.
        logprobs: One entry a token where the parameters ask for them.
        tree: The draft of the step, without probes.
        path: Its accepted nodes.
    """

    index: int
    sample: int
    tokens: list[int]
    sources: list[str | None]
    text: str
    finish_reason: str | None
    logprobs: list[TokenLogprobs] | None = None
    tree: DraftTree = field(default_factory=DraftTree)
    path: list[int] = field(default_factory=list)

    @property
    def rejected(self) -> list[int]:
        """Nodes of the draft that were not accepted."""
        accepted = set(self.path)
        return [node for node in range(len(self.tree)) if node not in accepted]


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOutput:
    """One finished continuation.

    Attributes:
        index, sample: Which prompt of the call, which of its `n` continuations.
        prompt_token_ids, token_ids: Prompt and output.
        text: The output as text, up to a stop string or stop token; empty for a target without a tokenizer.
        finish_reason: stop or length; error where serving it failed; cancelled where it was taken back.
        seed: The seed that gives this text again.
        drafter: The drafting method.
        lossless: Whether its acceptance rule keeps the target's law.
        sources: The drafter of each output token, none where the target chose it itself.
        logprobs: One entry a token where the parameters ask for them.
        prompt_logprobs: One entry a prompt token where the parameters ask for them; none for the first.
        cached_tokens: Tokens of the prompt that were not computed for it, but for an earlier text.
        error: What failed, where the finish reason is error.
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
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    cached_tokens: int = 0
    error: str | None = None

    @property
    def tokens_per_second(self) -> float:
        return len(self.token_ids) / self.seconds if self.seconds else 0.0
