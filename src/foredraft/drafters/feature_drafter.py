"""Drafting at feature level: a small head continues the target's own hidden states, chain or tree (EAGLE, MTP).

With x_0 .. x_n committed, x_n the root, the head reads pairs (F_i, x_{i+1}) at position i for i < n. A drafted token
takes the head's own output of the row before in place of a feature. Pairs of committed tokens are run again once their
true features are known; so what acceptance keeps of a draft is the target's cache alone.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.plan_builder import Rows, build_plan, compact
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation
from foredraft.drafters.feature_store import EVERY_POSITION, FeatureStore
from foredraft.drafters.growing_tree import GrowingTree
from foredraft.drafters.marginal_draft import scattered
from foredraft.drafters.packed_attend import PackedAttend
from foredraft.drafters.prefix_state import PrefixState
from foredraft.drafters.ranked_tree import growing_tree
from foredraft.heads.layer import Attend, LayerSizes
from foredraft.model.slot_pool import LayerGroup, LayerShape, SlotPool
from foredraft.model.target import ModelTarget

CATCH_UP_ROWS = 512


class FeatureHead(Protocol):
    """A network that drafting at feature level runs; see `heads/eagle.py` and `heads/mtp.py`."""

    feature_layers: tuple[int, ...]
    target_ids: Tensor | None

    def fuse(self, features: Tensor) -> Tensor: ...
    def __call__(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor: ...
    def logits(self, out: Tensor) -> Tensor: ...
    def fed_back(self, out: Tensor) -> Tensor: ...


@dataclass(eq=False)
class FeatureDraft:
    """One request's draft while it is made.

    Attributes:
        tree: Its tokens, slots and rows.
        inputs: Hidden state that enters the row of each node to run: the output of its parent's row.
        outputs: Hidden state each run node hands to its children.
    """

    tree: GrowingTree
    inputs: dict[int, Tensor] = field(default_factory=dict)
    outputs: dict[int, Tensor] = field(default_factory=dict)

    def hidden(self) -> Tensor:
        """Hidden states entering the tree's rows, [rows, hidden]."""
        for node in self.tree.frontier:
            self.inputs[node] = self.outputs[self.tree.nodes[node].parent]
        return torch.stack([self.inputs[node] for node in self.tree.run_nodes])

    def extend(self, logits: Tensor, fed_back: Tensor) -> None:
        """Grow by the level just run: logits [open rows, V] and what its rows hand on, [open rows, hidden]."""
        self.outputs.update(zip(self.tree.frontier or [ROOT], fed_back, strict=True))
        self.tree.extend(logits)


class FeatureDrafter:
    """Drafts with a feature-level head.

    Attributes:
        head: The network.
        layers: Its keys and values in the target's pool, under the target's own slots.
        features: The target's features of positions it has not run.
        scale: Factor of its attention scores.
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
        self.target_ids = head.target_ids
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
        rows = self.fused([self.pending(task, last=True) for task in tasks])
        drafts = [self.begin(task, hidden[-1]) for task, (_, hidden) in zip(tasks, rows, strict=True)]
        self.run(drafts, rows)
        for draft in drafts:
            self.filled[draft.tree.task.request.id] = draft.tree.stored
        while going := [draft for draft in drafts if draft.tree.frontier]:
            self.run(going, [(draft.tree.rows(), draft.hidden()) for draft in going])
        return [draft.tree.finished() for draft in drafts]

    def begin(self, task: DraftTask, last: Tensor) -> FeatureDraft:
        """A draft with nothing in it yet; `last` [hidden] is what the target said of the position before the root."""
        tree = growing_tree(task, self.pool, self.name, len(task.request.tokens) - 1)
        return FeatureDraft(tree, inputs={ROOT: last})

    def run(self, drafts: list[FeatureDraft], rows: list[tuple[Rows, Tensor]]) -> None:
        """One forward of the head; every draft grows by the rows at its end that are open."""
        counts = [draft.tree.open_rows for draft in drafts]
        out = self.forward(rows)
        logits = scattered(self.head.logits(out), self.target_ids, drafts[0].tree.task.sampler.vocabulary.rows)
        fed_back = self.head.fed_back(out)
        for draft, own, handed in zip(drafts, logits.split(counts), fed_back.split(counts), strict=True):
            draft.extend(own, handed)

    def forward(self, rows: list[tuple[Rows, Tensor]]) -> Tensor:
        """The head's output of the rows whose logits are wanted, [R, hidden]."""
        plan = build_plan([request for request, _ in rows], self.pool.device)
        hidden = torch.cat([states for _, states in rows])[None]
        attend = PackedAttend(plan, self.layers, self.scale)
        return self.head(plan.tokens, hidden, plan.positions, attend)[0, plan.logit_rows]

    def catch_up(self, tasks: list[DraftTask]) -> None:
        """Run the head through pairs it has not seen, all but the last stretch of each request."""
        while behind := [task for task in tasks if self.missing(task.request) > CATCH_UP_ROWS]:
            self.forward(self.fused([self.pending(task, last=False) for task in behind]))
            for task in behind:
                self.filled[task.request.id] = self.filled.get(task.request.id, 0) + CATCH_UP_ROWS

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
            context_slots=compact(slots[:start], self.pool.device) if start else slice(0, 0),
            logits=int(last),
        )
        return rows, self.features.take(task.request, stop - start)

    def fused(self, rows: list[tuple[Rows, Tensor]]) -> list[tuple[Rows, Tensor]]:
        """Rows with their features as the head takes them, [rows, hidden] each."""
        hidden = self.head.fuse(torch.cat([features for _, features in rows]))
        parts = hidden.split([len(features) for _, features in rows])
        return [(request, own) for (request, _), own in zip(rows, parts, strict=True)]

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
    layers = pool.add_layers(owner, shapes, target.model.dtype)
    return FeatureDrafter(config.method, head, pool, layers=layers, scale=sizes.head_dim**-0.5)
