"""Drafting at feature level: a small head continues the target's own hidden states, chain or tree (EAGLE, MTP).

With x_0 .. x_n committed, x_n the root, the head reads pairs (F_i, x_{i+1}) at position i for i < n. A drafted token
takes the head's own output of the row before in place of a feature. Pairs of committed tokens are run again once their
true features are known; so what acceptance keeps of a draft is the target's cache alone.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.step_plan import StepPlan
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation
from foredraft.drafters.feature_store import EVERY_POSITION, FeatureStore
from foredraft.drafters.growing_tree import GrowingTree, going_on
from foredraft.drafters.level_ranking import grow
from foredraft.drafters.looped_draft import drafted, looped_drafts
from foredraft.drafters.prefix_state import PrefixState
from foredraft.drafters.ranked_tree import growing_tree
from foredraft.drafters.table_slots import first_slots
from foredraft.heads.feature_network import FeatureHead
from foredraft.heads.layer import LayerSizes
from foredraft.model.slot_pool import LayerGroup, LayerShape, SlotPool
from foredraft.model.target import ModelTarget

CATCH_UP_ROWS = 512


@dataclass(eq=False)
class FeatureDraft:
    """One request's draft while it is made.

    Attributes:
        tree: Its tokens, slots and rows.
        entered: Hidden states that entered the rows run so far, the root's and those of all expanded nodes; of a chain
            only the newest.
        ran: Nodes of the level just run.
        handed: What their rows hand to their children, [level, hidden].
    """

    tree: GrowingTree
    entered: Tensor
    ran: list[int]
    handed: Tensor

    def hidden(self) -> Tensor:
        """Hidden states entering the tree's rows, [rows, hidden]; the frontier's are what their parents hand on."""
        tree, entering = self.tree, self.handed
        if not tree.chain:
            places = [self.ran.index(tree.nodes[node].parent) for node in tree.frontier]
            entering = torch.cat([self.entered, self.handed[places]])
        self.entered, self.ran = entering, tree.frontier
        return entering


class FeatureDrafter:
    """Drafts with a feature-level head.

    Attributes:
        head: The network.
        layers: Its keys and values in the target's pool, under the target's own slots.
        features: The target's features of positions it has not run.
        scale: Factor of its attention scores.
        loop: Makes whole drafts in one call, where the head can.
        filled: Positions of each request whose pair the head has run.
    """

    def __init__(self, name: str, head: FeatureHead, pool: SlotPool, *, layers: LayerGroup, scale: float):
        self.name, self.head, self.pool = name, head, pool
        self.layers, self.scale, self.features = layers, scale, FeatureStore()
        self.needs = DrafterNeeds(
            samples=True,
            features=head.feature_layers,
            fixed_trees=True,
            stepwise=True,
            resumes=True,
            gapless=EVERY_POSITION,
        )
        self.target_ids, self.loop = head.target_ids, head.loop(layers)
        self.filled: dict[int, int] = {}

    @torch.inference_mode()
    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees for requests whose features are known up to the root; empty ones while a prompt is read."""
        trees = {task.request.id: DraftTree() for task in tasks}
        ready = [task for task in tasks if self.features.ready(task.request)]
        for task, tree in zip(ready, self.trees(ready) if ready else [], strict=True):
            trees[task.request.id] = tree
        return list(trees.values())

    def trees(self, tasks: list[DraftTask]) -> list[DraftTree]:
        self.catch_up(tasks)
        return drafted(tasks, self.loop, self.looped, self.grown)

    def looped(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Drafts made in one call, which runs the pending pairs, too."""
        features = together([self.features.take(task.request, self.missing(task.request)) for task in tasks])
        trees = looped_drafts(self.loop, tasks, self.pool, self.name, self.filled, ahead=1, features=features)
        self.fill(tasks)
        return [tree for tree, _ in trees]

    def draft(self, task: DraftTask, last: Tensor, handed: Tensor) -> FeatureDraft:
        """A draft with nothing in it yet.

        `last` [1, hidden] is what the target said of the position before the root, `handed` [1, hidden] what the head
        made of it and the root.
        """
        tree = growing_tree(task, self.pool, self.name, len(task.request.tokens) - 1)
        return FeatureDraft(tree, last, [ROOT], handed)

    def grown(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees grown level by level, each level one forward."""
        plan, logits, handed, hidden = self.begin([self.pending(task, last=True) for task in tasks])
        self.fill(tasks)
        last = hidden.index_select(0, plan.logit_rows)
        drafts = [self.draft(*parts) for parts in zip(tasks, last.split(1), handed.split(1), strict=True)]
        going = drafts
        while True:
            grow([draft.tree for draft in going], logits, self.target_ids)
            going_on([draft.tree for draft in drafts])
            going = [draft for draft in going if draft.tree.frontier]
            if not going:
                return [draft.tree.finished() for draft in drafts]
            plan = build_plan([draft.tree.rows() for draft in going], self.pool.device)
            states = [draft.hidden() for draft in going]
            logits, handed = self.head.run(plan, together(states), self.layers, self.scale)
            for draft, own in zip(going, handed.split([len(draft.ran) for draft in going]), strict=True):
                draft.handed = own

    def begin(self, rows: list[tuple[Rows, Tensor]]) -> tuple[StepPlan, Tensor, Tensor, Tensor]:
        """Run pairs of the target's features and tokens: the plan, and what `FeatureHead.begin` says of it."""
        plan = build_plan([own for own, _ in rows], self.pool.device)
        return plan, *self.head.begin(plan, together([features for _, features in rows]), self.layers, self.scale)

    def catch_up(self, tasks: list[DraftTask]) -> None:
        """Run the head through pairs it has not seen, all but the last stretch of each request."""
        while behind := [task for task in tasks if self.missing(task.request) > CATCH_UP_ROWS]:
            self.begin([self.pending(task, last=False) for task in behind])
            for task in behind:
                self.filled[task.request.id] = self.filled.get(task.request.id, 0) + CATCH_UP_ROWS

    def fill(self, tasks: list[DraftTask]) -> None:
        """Note that every pair before the root's position has been run."""
        self.filled.update((task.request.id, len(task.request.tokens) - 1) for task in tasks)

    def missing(self, request: Request) -> int:
        return len(request.tokens) - 1 - self.filled.get(request.id, 0)

    def pending(self, task: DraftTask, *, last: bool) -> tuple[Rows, Tensor]:
        """Rows of committed pairs not yet run, and the target's features: position i pairs F_i with token i + 1."""
        start, tokens, slots = self.filled.get(task.request.id, 0), task.request.tokens, task.table.slots
        stop = len(tokens) - 1 if last else start + CATCH_UP_ROWS
        rows = Rows(
            tokens=tokens[start + 1 : stop + 1],
            pending=stop - start,
            parents=[],
            slots=slots[start:stop],
            context=start,
            context_slots=first_slots(task.table, start, self.pool.device),
            logits=int(last),
        )
        return rows, self.features.take(task.request, stop - start)

    def observe(self, observations: list[Observation]) -> None:
        """Keep the features of the rows each request has kept."""
        for seen in observations:
            self.features.store(seen)

    def leave(self, request: Request, length: int) -> PrefixState:
        """What is known of the first `length` positions, each of which has its next token."""
        return self.features.leave(request, self.filled.get(request.id, 0), length)

    def resume(self, request: Request, state: PrefixState) -> None:
        """Go on from another request's text; the pair of its last position is the same in both."""
        self.filled[request.id] = state.filled
        self.features.resume(request, state)

    def close(self, request: Request) -> None:
        self.filled.pop(request.id, None)
        self.features.close(request)


def together(states: list[Tensor]) -> Tensor:
    return states[0] if len(states) == 1 else torch.cat(states)


def plain_shapes(sizes: LayerSizes, *, layers: int) -> dict[int, LayerShape]:
    """What each of a head's own layers stores for a token."""
    return dict.fromkeys(range(layers), LayerShape(sizes.kv_heads, sizes.head_dim, sizes.head_dim))


def feature_drafter(
    config: SpeculationConfig,
    target: ModelTarget,
    head: FeatureHead,
    sizes: LayerSizes,
    *,
    shapes: dict[int, LayerShape],
) -> FeatureDrafter:
    """A drafter over `head`, with storage for layers of `shapes` in the target's pool."""
    pool = target.pool
    owner = f"{config.method} {config.model or ''} {len(pool.groups)}"  # engines may share a target
    layers = pool.add_layers(owner, shapes, target.model.dtype, keeps_drafts=False)
    return FeatureDrafter(config.method, head, pool, layers=layers, scale=sizes.head_dim**-0.5)
