"""Medusa (Cai et al. 2401.10774): heads on the target's last hidden state, each guessing one token further ahead.

The hidden state of position t is what the target chose token t + 1 from. Head i was trained to guess token t + 2 + i
from it; with the root at t + 1 that is the (i + 1)-th token after the root.
"""

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.static_tree import StaticTree, token_tree
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.learned import load_head
from foredraft.drafters.marginal_draft import Marginals
from foredraft.drafters.marginal_tree import measured_tree
from foredraft.heads.medusa import MedusaHeads
from foredraft.heads.native_medusa import NativeMedusa
from foredraft.model.target import ModelTarget

UNMEASURED = "mc_sim_7b_63"  # the published tree for heads whose accuracies nobody measured


class MedusaDrafter:
    """Drafts chains of the likeliest guesses, or static trees.

    A tree is the one that `speculative_token_tree` gives, cut to `tree_size` nodes; else the best one of `tree_size`
    nodes for the heads' measured accuracies, at most `tree_width` children a node. Heads without measured accuracies
    take as much of mc_sim_7b_63, the tree published for Vicuna-7B, as these limits allow.

    Attributes:
        heads: The network, in torch or in the native extension.
        last: Position and hidden state [hidden] of the last token of each request that the target has run through.
        shapes: Trees by their limits, planned once.
    """

    name = "medusa"

    def __init__(self, heads: MedusaHeads | NativeMedusa):
        self.heads = heads
        self.needs = DrafterNeeds(
            samples=True, features=heads.feature_layers, fixed_trees=True, deepest=heads.config.heads
        )
        self.last: dict[int, tuple[int, Tensor]] = {}
        self.shapes: dict[tuple, StaticTree] = {}

    @torch.inference_mode()
    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees for requests whose last token but the root is known; empty ones while a prompt is read."""
        ready = [task for task in tasks if self.ready(task.request)]
        trees = {}
        if ready:
            hidden = torch.stack([self.last[task.request.id][1] for task in ready])
            guesses = self.heads(hidden).transpose(0, 1)  # [requests, heads, V_draft]
            trees = {task.request.id: self.tree(task, own) for task, own in zip(ready, guesses, strict=True)}
        return [trees.get(task.request.id, DraftTree()) for task in tasks]

    def ready(self, request: Request) -> bool:
        """Whether the hidden state before the root is known: right after the prompt's last chunk it is not."""
        position, _ = self.last.get(request.id, (None, None))
        return position == len(request.tokens) - 2

    def tree(self, task: DraftTask, logits: Tensor) -> DraftTree:
        depth = min(task.depth, len(logits))
        shape = self.shape(task, depth)
        return Marginals(task, logits[:depth], self.heads.target_ids, self.name, shape.width).filled(shape)

    def shape(self, task: DraftTask, depth: int) -> StaticTree:
        """What to fill, at most `depth` deep."""
        config = task.speculation
        limits = (config.speculative_token_tree, config.tree_width if config.branches else 0, task.nodes, depth)
        if limits not in self.shapes:
            self.shapes[limits] = self.planned(*limits)
        return self.shapes[limits]

    def planned(self, fixed: str | None, width: int, nodes: int, depth: int) -> StaticTree:
        """A tree within limits; `width` 0 asks for a chain."""
        accuracies = self.heads.config.accuracies
        if fixed is not None:
            return token_tree(fixed).cut(nodes=nodes, depth=depth)
        if not width:
            return StaticTree.chain(depth)
        if accuracies:
            return measured_tree(accuracies, nodes=nodes, depth=depth, width=width)
        return token_tree(UNMEASURED).cut(nodes=nodes, depth=depth, width=width)

    def observe(self, observations: list[Observation]) -> None:
        """Keep the hidden state of the last row each request has kept."""
        for seen in observations:
            if not seen.request.finished:
                # A copy: a row that is a view would keep a whole chunk's features alive.
                [hidden] = seen.features
                self.last[seen.request.id] = (seen.first + len(hidden) - 1, hidden[-1].clone())

    def close(self, request: Request) -> None:
        self.last.pop(request.id, None)


@register("medusa")
def make_medusa(config: SpeculationConfig, target: ModelTarget) -> MedusaDrafter:
    """A drafter over the heads `config.model` names. Raises `ConfigError` or `ModelError`."""
    _, heads = load_head(config, target)
    return MedusaDrafter(heads)
