"""One request: what was asked, what is written so far, and how it ended."""

from dataclasses import dataclass, field
from itertools import count

from foredraft.core.outcome import SpeculationStatistics, TokenLogprobs
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig

next_id = count().__next__


@dataclass(kw_only=True, eq=False)
class Request:
    """A prompt on its way through the engine.

    `tokens` holds prompt and output. The first `computed` of them have keys and values in the target's cache; the
    rest are pending. In plain decoding exactly one token is pending: the one written last, the root of the next draft.

    Attributes:
        prompt: Token ids of the prompt, at least one.
        params: How to choose tokens and when to stop.
        speculation: How to draft and accept.
        seed: Key of this request's noise; given even when `params.seed` is none.
        tokens: Prompt and output so far.
        computed: Tokens with target keys and values.
        finish_reason: stop, length or error once finished; none while running.
    """

    prompt: list[int]
    params: SamplingParams
    speculation: SpeculationConfig
    seed: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    statistics: SpeculationStatistics = field(default_factory=SpeculationStatistics)
    id: int = field(default_factory=next_id)

    def __post_init__(self) -> None:
        assert self.prompt
        self.tokens = self.tokens or list(self.prompt)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.prompt) :]

    @property
    def written(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def remaining(self) -> int:
        """Tokens that may still be written."""
        return self.params.max_new_tokens - self.written

    @property
    def pending(self) -> int:
        """Tokens not yet in the target's cache; the root is the last of them."""
        return len(self.tokens) - self.computed

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None
