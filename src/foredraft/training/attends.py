"""Who sees whom in training: the attention of whole texts, of unrolled drafting and of anchored blocks.

Each gives what drafting gives with a cache, for every row of every text at once. Shapes: B texts, T rows of each, H
query heads in G groups of R, D head size; Q rows of a text go on to later unrolls, A blocks of N rows hang on a text.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def causal(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Every row sees itself and the rows before it in its text."""
    mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)  # [B, H, T, D]
    return mixed.transpose(1, 2).flatten(2)


class UnrolledAttend:
    """Training-time test (EAGLE-3, 2503.01840): a layer runs on from its own output as it will when it drafts.

    The first call of a layer is causal over whole texts; its keys are those of committed positions. In each later call
    row i of the Q chosen ones sees the first call's keys up to its own row, and of every later call only its own key,
    in one softmax: the chain drafted from row i has one row a step. Memory grows by Q keys a step.
    """

    def __init__(self, rows: Tensor):
        """`rows` [B, Q] int64: the rows of a text that later calls hold, in the order they hold them."""
        self.rows = rows
        self.committed: dict[int, tuple[Tensor, Tensor]] = {}
        self.drafted: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """From [B, H, T, D] in the first call and [B, H, Q, D] in later ones to [B, T or Q, H D]."""
        if layer not in self.committed:
            self.committed[layer], self.drafted[layer] = (key, value), []
            return causal(layer, query, key, value)
        self.drafted[layer].append((key, value))
        own_keys, own_values = (
            torch.stack(parts, dim=-2)[:, :, None] for parts in zip(*self.drafted[layer], strict=True)
        )
        keys, values = self.committed[layer]
        grouped = in_groups(query, keys.shape[1])  # [B, G, R, Q, D]
        scores = against(grouped, keys).masked_fill(self.later(keys.shape[2]), -torch.inf)
        own_scores = (grouped[..., None, :] * own_keys).sum(-1)  # [B, G, R, Q, steps]
        weights = torch.cat([scores, own_scores], dim=-1).softmax(dim=-1).to(values.dtype)
        shared, own = weights.split([scores.shape[-1], own_scores.shape[-1]], dim=-1)
        mixed = against(shared, values.mT) + (own[..., None] * own_values).sum(-2)
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2)

    def later(self, length: int) -> Tensor:
        """Committed keys after the row that would see them, [B, 1, 1, Q, T]."""
        keys = torch.arange(length, device=self.rows.device)
        return (keys > self.rows[..., None])[:, None, None]


class BlockAttend:
    """DFlash (2602.06036): a block sees the context before its anchor and itself, later masks included."""

    def __init__(self, context: list[tuple[Tensor, Tensor]], anchors: Tensor, *, causal_block: bool):
        """`context`: each layer's keys and values [B, G, T, D]; `anchors` [B, A]: each first row's place."""
        self.context, self.anchors, self.causal_block = context, anchors, causal_block

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """From the rows of all blocks, one block after another, [B, H, A N, D], to [B, A N, H D]."""
        keys, values = self.context[layer]
        blocks = self.anchors.shape[1]
        split = (blocks, query.shape[2] // blocks)
        grouped = in_groups(query, keys.shape[1]).unflatten(3, split)  # [B, G, R, A, N, D]
        own_keys, own_values = (part.unflatten(2, split)[:, :, None] for part in (key, value))
        before = against(grouped.flatten(3, 4), keys).unflatten(3, split).masked_fill(self.outside(keys), -torch.inf)
        own = grouped @ own_keys.mT  # [B, G, R, A, N, N]
        if self.causal_block:
            later = torch.ones(split[1], split[1], dtype=torch.bool, device=own.device).triu(1)
            own = own.masked_fill(later, -torch.inf)
        weights = torch.cat([before, own], dim=-1).softmax(dim=-1).to(values.dtype)
        before, own = weights.split([keys.shape[2], split[1]], dim=-1)
        mixed = against(before.flatten(3, 4), values.mT) + (own @ own_values).flatten(3, 4)
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2)

    def outside(self, keys: Tensor) -> Tensor:
        """Context keys at or after the anchor, [B, 1, 1, A, 1, T]."""
        rows = torch.arange(keys.shape[2], device=keys.device)
        return (rows >= self.anchors[..., None])[:, None, None, :, None]


def in_groups(query: Tensor, groups: int) -> Tensor:
    """Scaled queries [B, H, Q, D] by the group that shares a key, [B, G, R, Q, D]."""
    return query.unflatten(1, (groups, -1)) * query.shape[-1] ** -0.5


def against(rows: Tensor, shared: Tensor) -> Tensor:
    """Products of [B, G, R, Q, D] with each group's own [B, G, T, D], [B, G, R, Q, T]: one matrix product a group."""
    return (rows.flatten(2, 3) @ shared.mT).unflatten(2, rows.shape[2:4])
