"""How a drafter is trained, whatever the method."""

from dataclasses import dataclass

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole, within
from foredraft.core.speculation_config import one_of
from foredraft.training.optimizer import OPTIMIZERS

TRAIN_DTYPES = ("auto", "fp32", "bf16")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """A training run. Raises `ConfigError` naming the value.

    Attributes:
        seed: Of all randomness: the same seed, the same weights.
        epochs: Times every training sample is seen.
        steps: Optimizer steps, in place of `epochs`.
        batch_size: Samples of a step, all processes and micro-batches together.
        batch_tokens: Tokens of a step, padding included, in place of `batch_size`.
        accumulation: Micro-batches a process splits its part of a step into; changes memory, not the result.
        learning_rate: Highest one; the method's own when not given.
        warmup: Share of the steps over which it rises; then it falls along a cosine to a tenth.
        optimizer: adamw, or muon for the matrices between layers.
        weight_decay: Of matrices.
        clip: Bound on the norm of the gradient.
        train_dtype: What products are computed in: auto (the device's fast one), fp32 or bf16. Weights stay in fp32.
        recompute_logits: Make logits again in the backward pass instead of keeping them: less memory, more work.
        held_out: Share of the samples kept back to measure agreement on.
        evaluate_steps: Steps between two measurements; 0 measures at the end alone.
        save_steps: Steps between two saved states; 0 leaves it to `save_minutes`.
        save_minutes: Minutes between two saved states.
        tensorboard: Write the curves for TensorBoard too, which must be installed.
    """

    seed: int = 0
    epochs: float = 1.0
    steps: int | None = None
    batch_size: int = 8
    batch_tokens: int | None = None
    accumulation: int = 1
    learning_rate: float | None = None
    warmup: float = 0.04
    optimizer: str = "adamw"
    weight_decay: float = 0.0
    clip: float = 1.0
    train_dtype: str = "auto"
    recompute_logits: bool = False
    held_out: float = 0.02
    evaluate_steps: int = 0
    save_steps: int = 0
    save_minutes: float = 10.0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        whole("seed", self.seed, 0, 2**63 - 1)
        require(self.epochs > 0, f"epochs is {self.epochs}; it must be over 0")
        if self.steps is not None:
            whole("steps", self.steps, 1)
        whole("batch_size", self.batch_size, 1)
        whole("accumulation", self.accumulation, 1)
        if self.batch_tokens is not None:
            whole("batch_tokens", self.batch_tokens, 1)
        rate = self.learning_rate
        require(rate is None or rate > 0, f"learning_rate is {rate}; it must be over 0")
        within("warmup", self.warmup, 0, 1)
        one_of("optimizer", self.optimizer, OPTIMIZERS)
        within("weight_decay", self.weight_decay, 0, 1)
        require(self.clip > 0, f"clip is {self.clip}; it must be over 0")
        one_of("train_dtype", self.train_dtype, TRAIN_DTYPES)
        require(0 <= self.held_out < 1, f"held_out is {self.held_out}; it must be at least 0 and less than 1")
        whole("evaluate_steps", self.evaluate_steps, 0)
        whole("save_steps", self.save_steps, 0)
        require(self.save_minutes > 0, f"save_minutes is {self.save_minutes}; it must be over 0")


# What may change between a run and its resumption: none of it is seen by the weights.
FREE = ("evaluate_steps", "save_steps", "save_minutes", "tensorboard", "recompute_logits")
