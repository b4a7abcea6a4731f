"""Attention of some requests' rows to the keys they see, whoever laid them out.

Shapes: N requests, R rows and S keys of each, H query heads, G key-value heads, D and Dv head sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

Bias = Callable[[int, torch.dtype], Tensor | None]
"""What is added to scores, [..., repeat * R, S], rows of `repeat` heads one after another; none where all is seen."""


@dataclass(kw_only=True, slots=True)
class Attending:
    """How one layer attends.

    Attributes:
        layer: Its index.
        scale: Factor of the scores.
        window: Positions a row sees back to, itself included; none sees all.
        softcap: Bound the scores are squeezed into, where the model has one.
        sinks: A logit a head that takes weight and gives no value, [H], where the model has them.
    """

    layer: int
    scale: float
    window: int | None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        return self.softcap is None and self.sinks is None


def attended(query: Tensor, keys: Tensor, values: Tensor, bias: Bias, attending: Attending) -> Tensor:
    """Attention of `query` [N, H, R, D] to `keys` [N, G, S, D] and `values` [N, G, S, Dv], [N, R, H, Dv].

    Query heads that share a key head become more rows of it, so keys are read once.
    """
    count, heads, rows, size = query.shape
    groups = keys.shape[1]
    repeat = heads // groups
    folded = query.reshape(count, groups, repeat * rows, size)
    if attending.plain:
        mask = bias(repeat, query.dtype)
        out = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=attending.scale)
    else:
        out = spelled_out(folded, keys, values, bias(repeat, torch.float32), attending, rows)
    return out.reshape(count, heads, rows, -1).transpose(1, 2)


def spelled_out(
    folded: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, attending: Attending, rows: int
) -> Tensor:
    """Attention step by step, for soft-capped logits (Gemma 2) and sinks (gpt-oss), [N, G, repeat * R, Dv]."""
    scores = (folded @ keys.transpose(2, 3) * attending.scale).float()  # [N, G, repeat * R, S]
    if attending.softcap is not None:
        scores = torch.tanh(scores / attending.softcap) * attending.softcap
    if bias is not None:
        scores = scores + bias
    return softmax_with_sinks(scores, attending.sinks, rows).to(values.dtype) @ values


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None, rows: int) -> Tensor:
    """Softmax over keys; a sink is one more logit a head that takes weight and gives no value."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().reshape(scores.shape[1], -1, 1).expand(-1, -1, rows).reshape(scores.shape[1], -1, 1)
    return torch.cat([scores, column.expand(len(scores), -1, -1, -1)], dim=-1).softmax(-1)[..., :-1]
