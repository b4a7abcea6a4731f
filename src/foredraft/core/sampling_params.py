"""How one request wants its tokens chosen, and when to stop."""

from dataclasses import dataclass, field
from math import isfinite

from foredraft.core.errors import require

GUIDED = ("guided_json", "guided_regex", "guided_grammar")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling parameters of one request, applied in transformers' order.

    Raises `ConfigError` naming the value when one is out of range.

    Attributes:
        temperature: 0 is greedy; otherwise logits are divided by it.
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches it; 1 keeps all.
        min_p: Drop tokens below this share of the most likely token's probability; 0 keeps all.
        typical_p: Locally typical sampling (Meister et al. 2022); 1 is off.
        repetition_penalty: Divides positive and multiplies negative logits of tokens seen before, prompt included;
            1 is off.
        presence_penalty: Subtracted once from the logit of each token already written.
        frequency_penalty: Subtracted for each time a token was already written.
        logit_bias: Added to the logits of the given token ids.
        bad_words: Strings that must not be written.
        allowed_token_ids: When given, only these may be written.
        guided_json: A JSON schema as text, which the output will fulfil, or object for any JSON object. White space
            between its parts is free unless the schema says "x-guidance": {"whitespace_flexible": false}.
        guided_regex: A regular expression in Rust's syntax, which the whole output will match.
        guided_grammar: A grammar in llguidance's form of Lark, which the output will follow.
        max_new_tokens: Most tokens to write.
        min_new_tokens: Tokens to write before any stop token or stop string counts.
        stop: Strings that end the text; they are cut from it.
        stop_token_ids: Token ids that end the text beside the model's own.
        ignore_eos: Write on past the model's end-of-text tokens.
        seed: Same seed, same text, whatever the speculation; none draws a fresh one.
        n: Continuations of the same prompt; each has its own seed derived from `seed`.
        logprobs: When given, report the log-probability of each written token and of this many most likely ones.
        prompt_logprobs: The same for every token of the prompt but the first.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    guided_json: str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    max_new_tokens: int = 256
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    def __post_init__(self) -> None:
        within("temperature", self.temperature, 0, 100)
        whole("top_k", self.top_k, 0)
        require(0 < self.top_p <= 1, f"top_p is {self.top_p}; it must be over 0 and at most 1")
        within("min_p", self.min_p, 0, 1)
        require(0 < self.typical_p <= 1, f"typical_p is {self.typical_p}; it must be over 0 and at most 1")
        penalty = self.repetition_penalty
        require(isfinite(penalty) and penalty > 0, f"repetition_penalty is {penalty}; it must be over 0")
        within("presence_penalty", self.presence_penalty, -2, 2)
        within("frequency_penalty", self.frequency_penalty, -2, 2)
        for token, bias in self.logit_bias.items():
            within(f"logit_bias of token {token}", bias, -100, 100)
        require(self.allowed_token_ids != (), "allowed_token_ids is empty; give at least one token id or leave it out")
        whole("max_new_tokens", self.max_new_tokens, 1)
        whole("min_new_tokens", self.min_new_tokens, 0)
        require(
            self.min_new_tokens <= self.max_new_tokens,
            f"min_new_tokens is {self.min_new_tokens}; it must be at most max_new_tokens, {self.max_new_tokens}",
        )
        require(all(self.stop), "stop holds an empty string; leave it out")
        require(all(self.bad_words), "bad_words holds an empty string; leave it out")
        given = {key: getattr(self, key) for key in GUIDED if getattr(self, key) is not None}
        for key, text in given.items():
            require(isinstance(text, str) and text != "", f"{key} is {text!r}; it must be a string, not an empty one")
        require(len(given) < 2, f"{' and '.join(given)} are given; an output follows one of them, leave out the others")
        if self.seed is not None:
            whole("seed", self.seed, 0, 2**63 - 1)
        whole("n", self.n, 1, 1024)
        for key in ("logprobs", "prompt_logprobs"):
            if getattr(self, key) is not None:
                whole(key, getattr(self, key), 0, 100)

    @property
    def guided(self) -> tuple[str, str] | None:
        """The guided parameter that is given and its value; none where the output is free."""
        return next(((key, getattr(self, key)) for key in GUIDED if getattr(self, key) is not None), None)


def within(name: str, value: float, low: float, high: float) -> None:
    """Raise `ConfigError` unless `low <= value <= high`."""
    ok = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    require(ok, f"{name} is {value!r}; it must be from {low} to {high}")


def whole(name: str, value: int, low: int, high: int | None = None) -> None:
    """Raise `ConfigError` unless `value` is an int from `low` to `high` (no upper bound when none)."""
    ok = isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high)
    bound = f"from {low} to {high}" if high is not None else f"at least {low}"
    require(ok, f"{name} is {value!r}; it must be a whole number {bound}")
