"""Engines over modules that somebody else loaded and keeps: weights untouched, attention switched while we run."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary, proxy, ref

from torch import nn
from transformers import PreTrainedModel

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.vocabulary_check import require_same_vocabulary_size
from foredraft.engine.engine import Engine
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import find_device
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

COST_SECONDS = 0.3  # a call of `generate` may be short
ASSISTANT = "assistant_model"  # what a speculation config calls the assistant


class ModuleEngine(Engine):
    """An engine over a loaded module, and over an assistant as its draft model where there is one.

    It holds neither module: an engine kept for a module must not keep the module alive.

    Attributes:
        bad_words: Token sequences no request of the present call may write.
        assistant: The assistant module, weakly.
        assistant_drafter: Drafts with it.
    """

    def __init__(self, module: PreTrainedModel, assistant: PreTrainedModel | None, slots: int):
        """Raises `ModelError` for a module that cannot be run exactly, `VocabularyError` for another vocabulary."""
        packed = packed_model(module)
        pool = SlotPool(slots, module.device)
        place, vocabulary = find_device(str(module.device)), vocabulary_of(packed)
        target = ModelTarget(type(module).__name__, packed, place, pool, None, vocabulary)
        super().__init__(target, cost_seconds=COST_SECONDS)
        self.bad_words: list[list[int]] = []
        self.assistant = None if assistant is None else ref(assistant)
        self.assistant_drafter = None if assistant is None else self.drafter_over(assistant)

    def drafter_over(self, assistant: PreTrainedModel) -> DraftModelDrafter:
        packed = packed_model(assistant)
        require_same_vocabulary_size(self.target.vocabulary, vocabulary_of(packed), drafter=type(assistant).__name__)
        packed.attach(self.target.pool, ASSISTANT)
        return DraftModelDrafter(packed, self.target.pool, context_length=packed.capability.context_length)

    def serves(self, module: PreTrainedModel, assistant: PreTrainedModel | None, slots: int) -> bool:
        """Whether the modules are still those this engine was made for, and its cache is large enough."""
        model, known = self.target.model, self.assistant and self.assistant()
        same = (model.dtype, model.device) == (module.dtype, module.device)
        return same and slots <= self.target.pool.size and (assistant is None or assistant is known)

    def set_up(self, *, rows: int, bad_words: list[list[int]], config: SpeculationConfig) -> None:
        """Set up for one call: `rows` requests side by side, what they must not write, and who drafts."""
        self.scheduler.max_batch = rows
        self.bad_words = bad_words
        if config.model == ASSISTANT:
            self.drafters[config.drafter_key] = self.assistant_drafter

    def bad_word_tokens(self, params: SamplingParams) -> list[list[int]]:
        return self.bad_words


engines: WeakKeyDictionary[nn.Module, ModuleEngine] = WeakKeyDictionary()


def engine_for(module: PreTrainedModel, assistant: PreTrainedModel | None, *, slots: int) -> ModuleEngine:
    """The engine kept for `module`, made anew when it does not serve. Call it inside `packed_attention_of`."""
    engine = engines.get(module)
    if engine is None or not engine.serves(module, assistant, slots):
        engines.pop(module, None)  # first, so that the old cache is freed before the new one is taken
        del engine
        engines[module] = ModuleEngine(module, assistant, 1 << (slots - 1).bit_length())
    return engines[module]


def packed_model(module: PreTrainedModel) -> PackedModel:
    return PackedModel(proxy(module), capability_of(type(module), module.config), module.device)


def vocabulary_of(model: PackedModel) -> Vocabulary:
    """All rows of the logits; which tokens end a text comes with each call."""
    return Vocabulary(rows=model.capability.vocabulary_rows, size=model.capability.vocabulary_rows)


@contextmanager
def packed_attention_of(*modules: PreTrainedModel | None) -> Iterator[None]:
    """Let the modules attend through foredraft, and put back what they had."""
    given = [module for module in modules if module is not None]
    before = [module.config._attn_implementation for module in given]
    try:
        for module in given:
            module.set_attn_implementation(NAME)
        yield
    finally:
        for module, implementation in zip(given, before, strict=True):
            module.set_attn_implementation(implementation)
