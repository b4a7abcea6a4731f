"""Loads a draft model of another vocabulary with a cache of its own."""

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.draft_cache import DraftCache
from foredraft.drafters.foreign_draft_model import ForeignDraftModel
from foredraft.drafters.string_alignment import StringAlignment
from foredraft.drafters.token_intersection import TokenIntersection
from foredraft.drafters.token_text import TokenText
from foredraft.drafters.vocabulary_bridge import VocabularyBridge
from foredraft.model.loading import Checkpoint, vocabulary_of
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget, affordable_slots, load_beside

SLOTS_A_TOKEN = 2  # the draft model's tokens may be shorter than the target's


def make_foreign_draft_model(
    checkpoint: Checkpoint, tokenizer, target: ModelTarget, config: SpeculationConfig
) -> ForeignDraftModel:
    """A drafter by shared tokens where `config` asks for that, else through text.

    Raises `VocabularyError` where a tokenizer cannot be read, `ConfigError` where too few tokens are shared.
    """
    vocabulary = vocabulary_of(checkpoint, tokenizer)
    draft_text = TokenText(tokenizer, vocabulary, owner=f"draft model {checkpoint.name!r}")
    target_text = TokenText(target.tokenizer, target.vocabulary, owner=f"target {target.name!r}")
    bridge = VocabularyBridge(target_text, draft_text)
    by_tokens = config.vocabulary_matching == "tokens"
    if by_tokens:
        bridge.require_shared(checkpoint.name)
    model = load_beside(target, checkpoint, config.draft_weights)
    pool = own_pool(model, target)
    model.attach(pool, "draft_model")
    context = checkpoint.capability.context_length
    cache = DraftCache(model, pool, expected=min(context, pool.size))
    matching = TokenIntersection(bridge, cache) if by_tokens else StringAlignment(bridge, cache)
    return ForeignDraftModel(matching, bridge, cache, context_length=context)


def own_pool(model: PackedModel, target: ModelTarget) -> SlotPool:
    """Slots for the draft model: a share of free memory at most, and no more than the target's texts can fill."""
    slots = min(affordable_slots(model, target.place), SLOTS_A_TOKEN * target.pool.size)
    return SlotPool(slots, target.place.torch_device)
