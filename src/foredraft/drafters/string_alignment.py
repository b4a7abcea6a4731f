"""String-level exact match: drafts go through text, so any two vocabularies do (Timor et al. 2502.05202, SLEM).

The draft model writes its likeliest tokens, at any temperature: they have no law in the target's tokens, and are
accepted where they are the very tokens the target chooses.
"""

from codecs import getincrementaldecoder
from dataclasses import dataclass, field
from math import ceil

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import Rows
from foredraft.drafters.draft_cache import NO_SLOT, DraftCache
from foredraft.drafters.drafter import DrafterNeeds, DraftTask
from foredraft.drafters.foreign_draft_model import NAME, Order
from foredraft.drafters.token_text import TokenText
from foredraft.drafters.vocabulary_bridge import VocabularyBridge

LOOK_BEHIND = 16  # target tokens before the draft that are encoded with it
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes that no character begins with
LONGEST = 8  # draft tokens for each target token at most


@dataclass(kw_only=True, eq=False)
class Branch:
    """One drafted text.

    Attributes:
        order: What it is drafted for.
        tokens: Drafted tokens of the draft model, without the one that ends a text.
        slots: Slots of those that were run.
        going: Whether another token is to be drafted.
        ended: Whether it ends with the end of the text.
    """

    order: Order
    tokens: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    going: bool = True
    ended: bool = False


class StringAlignment:
    """Drafts a chain, or a chain for each of the draft model's likeliest first tokens, merged into a tree."""

    needs = DrafterNeeds(stepwise=True, told=False)

    def __init__(self, bridge: VocabularyBridge, cache: DraftCache):
        self.bridge, self.cache = bridge, cache

    def depth(self, task: DraftTask, rate: float) -> int:
        """As many as make the target tokens asked for, and one more, which says where the last of them ends."""
        return ceil(task.depth * min(max(rate, 1.0), LONGEST)) + 1

    def drafts(self, orders: list[Order], logits: Tensor) -> list[DraftTree]:
        started = [self.begun(order, own) for order, own in zip(orders, logits, strict=True)]
        branches = [branch for own in started for branch in own]
        while going := [branch for branch in branches if branch.going]:
            chances = self.chances(self.cache.forward([self.next_row(branch) for branch in going])).max(-1)
            for branch, token, chance in zip(going, chances.indices.tolist(), chances.values.tolist(), strict=True):
                self.extend(branch, token, chance)
        return [self.tree(order.task, own) for order, own in zip(orders, started, strict=True)]

    def chances(self, logits: Tensor) -> Tensor:
        """Probabilities of the draft model's tokens, padding left out."""
        return logits[..., : self.bridge.draft.size].float().softmax(-1)

    def begun(self, order: Order, logits: Tensor) -> list[Branch]:
        """A branch for each of the likeliest first tokens, from logits [V_draft]."""
        best = self.chances(logits).topk(min(order.width, self.bridge.draft.size))
        branches = [Branch(order=order) for _ in best.indices]
        for branch, token, chance in zip(branches, best.indices.tolist(), best.values.tolist(), strict=True):
            self.extend(branch, token, chance)
        return branches

    def extend(self, branch: Branch, token: int, chance: float) -> None:
        """Add a token that the draft model gave `chance`, unless it ends the text or means nothing to the target."""
        branch.ended = token in self.bridge.draft.ends
        if branch.ended or not self.bridge.target_pieces[token]:
            branch.going = False
            return
        branch.tokens.append(token)
        sure = chance >= branch.order.task.speculation.draft_confidence_threshold
        branch.going = sure and len(branch.tokens) < branch.order.depth

    def next_row(self, branch: Branch) -> Rows:
        """The row of the branch's last token, in a new slot."""
        text, token = branch.order.text, branch.tokens[-1]
        parent = branch.slots[-1] if branch.slots else NO_SLOT
        branch.slots += self.cache.pool.take(text.table, 1)
        text.drafted[parent, token] = branch.slots[-1]
        return self.cache.row_after(text, branch.slots, token)

    def tree(self, task: DraftTask, branches: list[Branch]) -> DraftTree:
        paths = [aligned(task.request.tokens, branch.tokens, branch.ended, self.bridge) for branch in branches]
        return DraftTree.from_paths([path[: task.depth] for path in paths], NAME, task.nodes)


def aligned(committed: list[int], drafted: list[int], ended: bool, bridge: VocabularyBridge) -> list[int]:
    """The target's tokens for drafted text, as they follow its committed tokens.

    The text is encoded with the end of what is committed. Where a token would cover both, the committed ones would have
    to change and the draft is given up. The last token may go on in what was not drafted, so it is left out; unless the
    draft is the text's end, whose token is added instead.
    """
    written = b"".join([bridge.target_pieces[token] for token in drafted])
    decoder = getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(bridge.target.text_bytes(committed[-LOOK_BEHIND:]).lstrip(CONTINUATION) + written)
    unfinished, _ = decoder.getstate()
    tokens = tokens_of(text, written[: len(written) - len(unfinished)], bridge.target)
    if not ended or unfinished or bridge.target.end is None:
        return tokens[:-1]
    return [*tokens, bridge.target.end] if tokens or not written else []


def tokens_of(text: str, end: bytes, target: TokenText) -> list[int]:
    """The last of the target's tokens for `text`, those that write `end` and nothing else; none where they do more."""
    tokens = [token for token, _, _ in target.encode(text)]
    first, left = len(tokens), len(end)
    while left > 0 and first:
        first -= 1
        left -= len(target.pieces[tokens[first]])
    return tokens[first:] if target.text_bytes(tokens[first:]) == end else []
