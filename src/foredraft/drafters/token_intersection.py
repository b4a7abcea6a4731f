"""Token-level intersection: drafts of the tokens both vocabularies hold (Timor et al. 2502.05202, TLI).

The draft model's law is cut to the shared tokens and normalised again. That is the law tokens are drawn from, so every
exact rule takes it for what it is.
"""

from dataclasses import dataclass, field, replace

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import Rows
from foredraft.drafters.draft_cache import NO_SLOT, CachedText, DraftCache
from foredraft.drafters.draft_choice import choices_for
from foredraft.drafters.drafter import DrafterNeeds, DraftTask
from foredraft.drafters.foreign_draft_model import NAME, Order
from foredraft.drafters.growing_tree import GrowingTree, going_on
from foredraft.drafters.level_ranking import grow
from foredraft.drafters.vocabulary_bridge import VocabularyBridge


@dataclass(eq=False, kw_only=True)
class SharedTokensTree(GrowingTree):
    """A draft in target tokens whose rows go to a draft model with other ids.

    Attributes:
        text: What the draft grows from, in the draft model's tokens and slots.
        bridge: Both vocabularies.
    """

    text: CachedText
    bridge: VocabularyBridge = field(repr=False)

    def rows(self) -> Rows:
        own = [self.bridge.draft_ids[self.nodes[node].token] for node in self.run_nodes if node >= 0]
        rows = super().rows()
        return replace(rows, tokens=self.text.tokens[-1:] + own if len(own) < len(rows.tokens) else own)

    def advance(self, fresh: list[int], scores: Tensor | None) -> None:
        """As in any draft; a chain ends with the token that ends the text."""
        if self.chain and fresh and self.nodes[fresh[0]].token == self.bridge.target.end:
            self.frontier = []
        else:
            super().advance(fresh, scores)

    def slots_of(self, chosen: list[int]) -> None:
        """None: these slots are the draft model's; in the target's cache the engine gives the nodes others."""

    def drafted(self) -> dict[tuple[int, int], int]:
        """Slot of each node that was run, by its parent's slot and its draft token."""
        slots = {node: self.nodes[node].slot for node in self.expanded}
        parents = {node: slots.get(self.nodes[node].parent, NO_SLOT) for node in slots}
        ids = self.bridge.draft_ids
        return {(parents[node], ids[self.nodes[node].token]): slot for node, slot in slots.items()}


class TokenIntersection:
    """Drafts chains and trees of shared tokens, chosen as by a draft model of the target's own vocabulary."""

    needs = DrafterNeeds(samples=True, stepwise=True, told=False)

    def __init__(self, bridge: VocabularyBridge, cache: DraftCache):
        self.bridge, self.cache = bridge, cache
        self.draft_ids, self.target_ids = bridge.pairs(cache.pool.device)

    def depth(self, task: DraftTask, rate: float) -> int:
        return task.depth

    def drafts(self, orders: list[Order], logits: Tensor) -> list[DraftTree]:
        growing = [self.growing(order) for order in orders]
        self.grow(growing, logits)
        while going := going_on(growing):
            self.grow(going, self.cache.forward([draft.rows() for draft in going]))
        for draft in growing:
            draft.text.drafted = draft.drafted()
        return [draft.finished() for draft in growing]

    def growing(self, order: Order) -> SharedTokensTree:
        return SharedTokensTree(
            task=replace(order.task, table=order.text.table),
            choice=choices_for(order.task),
            pool=self.cache.pool,
            drafter=NAME,
            stored=len(order.text.tokens),
            text=order.text,
            bridge=self.bridge,
        )

    def grow(self, drafts: list[SharedTokensTree], logits: Tensor) -> None:
        """Hang children below the rows just run, whose logits are [rows, V_draft]."""
        grow(drafts, logits.index_select(1, self.draft_ids), self.target_ids)
