"""DFlash (2602.06036): one forward of a small network guesses a whole block of tokens after the root.

With positions 0 .. n - 1 run by the target and the root at n, the block is the root and masks at n .. n + B - 1. Its
layers read keys and values made from the target's features of the positions before it, which lie in the target's pool
under the target's own slots. A tree is DDTree's (2604.12989): best-first over the guesses of all depths.
"""

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.request import Request
from foredraft.core.slots import compact
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.static_tree import StaticTree, token_tree
from foredraft.core.step_plan import Segment, StepPlan
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.feature_store import FeatureStore
from foredraft.drafters.learned import load_head
from foredraft.drafters.marginal_draft import Marginals
from foredraft.drafters.marginal_tree import best_first
from foredraft.drafters.prefix_state import PrefixState
from foredraft.heads.dflash import DFlashHead
from foredraft.heads.native_dflash import NativeDFlash
from foredraft.model.slot_pool import LayerGroup, LayerShape, SlotPool
from foredraft.model.target import ModelTarget

CATCH_UP_ROWS = 512


class DFlashDrafter:
    """Drafts with a block network.

    Attributes:
        head: The network, in torch or in the native extension.
        layers: Its keys and values in the target's pool.
        everything: What the rows of a block see of each other, unless the head is causal: all.
        features: The target's features of positions whose context keys and values are still to be made.
        filled: Positions of each request that have them.
    """

    name = "dflash"

    def __init__(self, head: DFlashHead | NativeDFlash, pool: SlotPool, layers: LayerGroup):
        self.head, self.pool, self.layers = head, pool, layers
        self.block = head.config.block_size
        self.needs = DrafterNeeds(
            samples=True,
            features=head.feature_layers,
            scratch=self.block - 1,
            fixed_trees=True,
            deepest=self.block - 1,
            resumes=True,
            gapless=head.config.sizes.max_positions,
        )
        self.everything = torch.ones(self.block, self.block, dtype=torch.bool, device=pool.device)
        self.features = FeatureStore()
        self.filled: dict[int, int] = {}

    @torch.inference_mode()
    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees for requests whose context is complete and whose block fits the head's own positions."""
        ready = [task for task in tasks if self.ready(task.request)]
        trees = {}
        if ready:
            self.catch_up(ready)
            blocks = [self.block_slots(task) for task in ready]
            guesses = self.guesses(ready, blocks)
            for task, logits, slots in zip(ready, guesses, blocks, strict=True):
                trees[task.request.id] = self.placed(self.tree(task, logits), task, slots[1:])
        return [trees.get(task.request.id, DraftTree()) for task in tasks]

    def ready(self, request: Request) -> bool:
        fits = len(request.tokens) - 1 + self.block <= self.head.config.sizes.max_positions
        return fits and self.features.ready(request)

    def catch_up(self, tasks: list[DraftTask]) -> None:
        """Store context keys and values of all committed positions that have none, a bounded number at a time."""
        stops = {task.request.id: len(task.request.tokens) - 1 for task in tasks}
        spans = [(task, range(self.filled.get(task.request.id, 0), stops[task.request.id])) for task in tasks]
        features = torch.cat([self.features.take(task.request, len(span)) for task, span in spans])
        positions = [position for _, span in spans for position in span]
        slots = [slot for task, span in spans for slot in task.table.slots[span.start : span.stop]]
        for start in range(0, len(positions), CATCH_UP_ROWS):
            part = slice(start, start + CATCH_UP_ROWS)
            self.store(features[part], positions[part], slots[part])
        self.filled.update(stops)

    def block_slots(self, task: DraftTask) -> list[int]:
        """The root's slot, which the step has taken, and scratch ones for the masks."""
        [root] = task.table.tail
        return [root, *self.pool.take(task.table, self.block - 1)]

    def guesses(self, tasks: list[DraftTask], blocks: list[list[int]]) -> list[Tensor]:
        """Logits of each task's guesses, [depth, V] each, from one forward of all blocks."""
        plan = self.plan(tasks, blocks)
        depths = [min(task.depth, self.block - 1) for task in tasks]
        plan.wanted = [index * self.block + row for index, depth in enumerate(depths) for row in range(1, depth + 1)]
        return list(self.head.guess(plan, self.layers).split(depths))

    def plan(self, tasks: list[DraftTask], blocks: list[list[int]]) -> StepPlan:
        """All blocks packed; the root and every mask see the whole block unless the head is causal."""
        plan = build_plan([self.rows(task, slots) for task, slots in zip(tasks, blocks, strict=True)], self.pool.device)
        if not self.head.config.causal:
            for segment in plan.segments:
                segment.ancestors = self.everything
        return plan

    def rows(self, task: DraftTask, slots: list[int]) -> Rows:
        return Rows(
            tokens=[task.request.tokens[-1]] + [self.head.config.mask_token_id] * (self.block - 1),
            pending=self.block,
            parents=[],
            slots=slots,
            context=len(task.table),
            context_slots=task.table.committed(self.pool.device),
            logits=0,
        )

    def tree(self, task: DraftTask, logits: Tensor) -> DraftTree:
        config, depth = task.speculation, len(logits)
        if config.speculative_token_tree is not None:
            shape = token_tree(config.speculative_token_tree).cut(nodes=task.nodes, depth=depth)
        else:
            shape = None if config.branches else StaticTree.chain(depth)
        width = config.tree_width if shape is None else shape.width
        guesses = Marginals(task, logits, None, self.name, width)
        return guesses.filled(best_first(guesses.gains, task.nodes) if shape is None else shape)

    def placed(self, tree: DraftTree, task: DraftTask, scratch: list[int]) -> DraftTree:
        """Nodes take the masks' slots first: they continue the request's run, and an accepted chain stays in place."""
        more = len(tree) - len(scratch)
        tree.slots = scratch[: len(tree)] + (self.pool.take(task.table, more) if more > 0 else [])
        return tree

    def observe(self, observations: list[Observation]) -> None:
        """Keep the features of the rows each request has kept, as far as the head can use them."""
        last = self.head.config.sizes.max_positions
        for seen in observations:
            if seen.first < last:
                self.features.store(seen)

    def leave(self, request: Request, length: int) -> PrefixState:
        """What is known of the first `length` positions; nothing past those the head has."""
        return self.features.leave(request, self.filled.get(request.id, 0), length)

    def resume(self, request: Request, state: PrefixState) -> None:
        """Go on from another request's text."""
        self.filled[request.id] = state.filled
        self.features.resume(request, state)

    def store(self, features: Tensor, positions: list[int], slots: list[int]) -> None:
        """Context keys and values of features [rows, layers x width], into the slots of their positions."""
        device = self.pool.device
        segment = Segment(start=0, context=0, keys=compact(slots, device), places=positions, device=device)
        plan = StepPlan(ids=positions, places=positions, slots=slots, segments=[segment], wanted=[], device=device)
        self.head.store(features, plan, self.layers)

    def close(self, request: Request) -> None:
        self.filled.pop(request.id, None)
        self.features.close(request)


def dflash_drafter(name: str, head: DFlashHead | NativeDFlash, pool: SlotPool, dtype: torch.dtype) -> DFlashDrafter:
    """A drafter over `head`, with storage for its layers in `pool` under a `name` of its own."""
    sizes = head.config.sizes
    shape = LayerShape(sizes.kv_heads, sizes.head_dim, sizes.head_dim)
    owner = f"{name} {len(pool.groups)}"  # engines may share a target
    shapes = dict.fromkeys(range(head.config.layers), shape)
    return DFlashDrafter(head, pool, pool.add_layers(owner, shapes, dtype, keeps_drafts=False))


@register("dflash")
def make_dflash(config: SpeculationConfig, target: ModelTarget) -> DFlashDrafter:
    """A drafter over the head `config.model` names. Raises `ConfigError` or `ModelError`."""
    _, head = load_head(config, target)
    return dflash_drafter(f"dflash {config.model or ''}", head, target.pool, target.model.dtype)
