"""What a drafter learns from, and how it is read."""

from dataclasses import dataclass
from pathlib import Path

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole, within
from foredraft.core.speculation_config import one_of
from foredraft.training.read_samples import BAD_LINES, TOO_LONG

ANSWERING = ("answers", "temperature", "data_seed", "answer_tokens")
TEMPERATURE, DATA_SEED, ANSWER_TOKENS = 0.0, 0, 256


@dataclass(frozen=True, kw_only=True, slots=True)
class DataOptions:
    """Training data. Raises `ConfigError` naming the value.

    Attributes:
        max_length: Most tokens of a sample.
        too_long: What becomes of a longer one: cut, its beginning is kept, or drop.
        bad_lines: What a line that is no sample does: stop the run, or skip itself.
        regenerate: Let the target answer every prompt anew, so that the drafter learns the target's own words.
        answers: File that keeps these answers, which another run may share; run/answers.jsonl of the output when not
            given.
        temperature: Of these answers; 0 when not given.
        data_seed: Of these answers; 0 when not given.
        answer_tokens: Most tokens of an answer; 256 when not given.
        feature_cache: Folder that keeps the target's hidden states, which another run may share; when not given they
            are computed anew in every step.
    """

    max_length: int = 1024
    too_long: str = "cut"
    bad_lines: str = "stop"
    regenerate: bool = False
    answers: Path | None = None
    temperature: float | None = None
    data_seed: int | None = None
    answer_tokens: int | None = None
    feature_cache: Path | None = None

    def __post_init__(self) -> None:
        whole("max_length", self.max_length, 2)
        one_of("too_long", self.too_long, TOO_LONG)
        one_of("bad_lines", self.bad_lines, BAD_LINES)
        for name in ANSWERING:
            idle = getattr(self, name) is not None and not self.regenerate
            require(not idle, f"{name} is for answers of the target; ask for them with --regenerate")
        if self.temperature is not None:
            within("temperature", self.temperature, 0, 100)
        if self.data_seed is not None:
            whole("data_seed", self.data_seed, 0, 2**63 - 1)
        if self.answer_tokens is not None:
            whole("answer_tokens", self.answer_tokens, 1)

    @property
    def answering(self) -> dict[str, float]:
        """How the target answers, defaults resolved, as `regenerate` takes it."""
        return {
            "temperature": TEMPERATURE if self.temperature is None else self.temperature,
            "seed": DATA_SEED if self.data_seed is None else self.data_seed,
            "max_new_tokens": ANSWER_TOKENS if self.answer_tokens is None else self.answer_tokens,
        }
