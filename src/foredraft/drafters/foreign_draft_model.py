"""Drafting by a model of another vocabulary: its text, its cache, and a way back to the target's tokens."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.drafters.draft_cache import CachedText, DraftCache
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation
from foredraft.drafters.translated_context import TranslatedContext
from foredraft.drafters.vocabulary_bridge import VocabularyBridge

NAME = "draft_model"  # of its nodes too


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """One request's order for a draft, as the draft model sees it.

    Attributes:
        task: What the engine asks for.
        text: The request's text in the draft model's cache, ready to be run.
        depth: Most tokens the draft model may draft one after another.
        width: Most drafts side by side: 1 for a chain.
    """

    task: DraftTask
    text: CachedText
    depth: int
    width: int


class Matching(Protocol):
    """How drafts of the draft model become drafts of the target's tokens."""

    needs: DrafterNeeds

    def depth(self, task: DraftTask, rate: float) -> int:
        """Most tokens of its own the draft model is to draft where a target token took `rate` of them so far."""

    def drafts(self, orders: list[Order], logits: Tensor) -> list[DraftTree]:
        """A tree for each order, from the draft model's logits after each text, [orders, V_draft]."""


class ForeignDraftModel:
    """A draft model that reads each request's text in its own tokens, from a cache of its own.

    A request drafts nothing in a step for which the cache has no room, or where its text ends inside a character that
    the draft model cannot be shown. When the draft model's context is full, the older half of its text goes.

    Attributes:
        matching: The way to the target's tokens.
        bridge: Both vocabularies.
        cache: The draft model and what it holds of each request.
        context_length: Positions the draft model was made for.
        contexts: Each request's text in the draft model's tokens.
    """

    name = NAME

    def __init__(self, matching: Matching, bridge: VocabularyBridge, cache: DraftCache, *, context_length: int):
        self.matching, self.bridge, self.cache, self.context_length = matching, bridge, cache, context_length
        self.needs = matching.needs
        self.contexts: dict[int, TranslatedContext] = {}

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees for requests whose text the draft model can be shown, empty ones for the others."""
        placed = [(place, order) for place, task in enumerate(tasks) if (order := self.order(task)) is not None]
        trees = [DraftTree() for _ in tasks]
        if placed:
            places, orders = zip(*placed, strict=True)
            logits = self.cache.begin([order.text for order in orders])
            for place, tree in zip(places, self.matching.drafts(list(orders), logits), strict=True):
                trees[place] = tree
        return trees

    def order(self, task: DraftTask) -> Order | None:
        """What to draft, with slots for it; none where nothing can be drafted."""
        request = task.request
        if request.id not in self.contexts:
            self.contexts[request.id] = TranslatedContext(self.bridge)
        context = self.contexts[request.id]
        context.read(request.tokens)
        depth = self.matching.depth(task, len(context.spans) / len(request.tokens))
        width = task.speculation.tree_width if task.speculation.tree_size else 1
        tokens = context.view(depth, self.context_length)
        text = self.cache.place(request, tokens, depth * width) if tokens else None
        return Order(task=task, text=text, depth=depth, width=width) if text is not None else None

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn here: `propose` reads what is new from the request's tokens."""

    def close(self, request: Request) -> None:
        self.contexts.pop(request.id, None)
        self.cache.close(request)
