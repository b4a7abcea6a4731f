"""The model whose text is written, as the engine sees it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from foredraft.core.sampling_params import whole
from foredraft.core.step_plan import StepPlan
from foredraft.core.vocabulary import Vocabulary
from foredraft.model.capture import States
from foredraft.model.devices import Device, find_device, find_dtype, use_threads
from foredraft.model.loading import Checkpoint, find_checkpoint, load_tokenizer, vocabulary_of
from foredraft.model.native_runtime import AUTO
from foredraft.model.packed_model import PackedModel, load_packed_model
from foredraft.model.slot_pool import SlotPool

MEMORY_SHARE = 0.4  # of free memory, for the cache
CONTEXTS = 16  # full-length requests the cache holds where memory allows


class Target(Protocol):
    """Packed forwards over a pool, and what is known of the tokens."""

    name: str
    vocabulary: Vocabulary
    context_length: int
    pool: SlotPool
    tokenizer: object | None

    def forward(self, plan: StepPlan, features: Sequence[int] = ()) -> tuple[Tensor, States]:
        """Logits of the plan's wanted rows, [R, V], and hidden states of all rows, [T, hidden], by boundary."""


class ModelTarget:
    """A target loaded through transformers.

    Attributes:
        name: As the user gave it.
        path: Its folder or hub id; none for a model that came as a module.
        model: The packed model.
        place: The device it runs on.
        pool: Its cache; drafters may add layers to it.
    """

    def __init__(
        self,
        name: str,
        model: PackedModel,
        place: Device,
        pool: SlotPool,
        tokenizer,
        vocabulary: Vocabulary,
        path: str | None = None,
    ):
        self.name, self.model, self.place, self.pool, self.path = name, model, place, pool, path
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.context_length = model.capability.context_length
        model.attach(pool, "target")

    def forward(self, plan: StepPlan, features: Sequence[int] = ()) -> tuple[Tensor, States]:
        return self.model.forward_with_features(plan, features)


def load_target(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    threads: int | None = None,
    cache_tokens: int | None = None,
    native: str | None = None,
) -> ModelTarget:
    """Load `name` with a cache of `cache_tokens` slots; none sizes it from the context and free memory.

    `native` names the kernels of the native path: auto, off or one set; none leaves it to FOREDRAFT_NATIVE.

    Raises `ModelError` for a model that is missing, broken or not exactly runnable, `ConfigError` for a bad option.
    """
    use_threads(threads)
    if cache_tokens is not None:
        whole("cache_tokens", cache_tokens, 1)
    place = find_device(device, native, dtype)
    checkpoint = find_checkpoint(name)
    model = load_model(checkpoint, dtype, place)
    tokenizer = load_tokenizer(checkpoint)
    pool = SlotPool(cache_tokens or affordable_slots(model, place), place.torch_device)
    return ModelTarget(name, model, place, pool, tokenizer, vocabulary_of(checkpoint, tokenizer), checkpoint.path)


def load_model(checkpoint: Checkpoint, dtype: str, place: Device) -> PackedModel:
    """Load `checkpoint` in `dtype`; auto is what is fast on the path that runs it.

    Raises `ModelError` for a model that cannot be run, `ConfigError` for an unknown dtype.
    """
    if dtype != AUTO:
        return load_packed_model(checkpoint, find_dtype(dtype, place), place)
    return load_packed_model(checkpoint, place.native_dtype(), place, elsewhere=place.fast_dtype())


def load_beside(target: ModelTarget, checkpoint: Checkpoint, weights: str) -> PackedModel:
    """Load a draft model for `target`, with `weights` as of `SpeculationConfig.draft_weights`.

    Raises `ModelError` for a model that cannot be run, `ConfigError` where int8 cannot be had.
    """
    dtype = target.model.dtype
    place = target.place.for_drafts(weights, dtype)
    return load_packed_model(checkpoint, dtype, place, elsewhere=place.drafts_elsewhere(dtype))


def affordable_slots(model: PackedModel, place: Device) -> int:
    affordable = int(MEMORY_SHARE * place.free_memory() / model.bytes_per_token)
    return max(1, min(CONTEXTS * model.capability.context_length, affordable))
