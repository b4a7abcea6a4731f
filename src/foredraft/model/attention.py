"""The attention function every loaded model runs through, and the ambient plan that tells it who sees what.

A plain module-level holder, not a context variable: dynamo cannot trace those. One forward runs at a time.

Shapes: T rows of the pack, H query heads, G key-value heads, R rows of a segment, S keys it sees, D head size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from foredraft.core.errors import ModelError
from foredraft.core.step_plan import Segment, StepPlan
from foredraft.model.joint_attention import bunches_of
from foredraft.model.slot_pool import LayerGroup

NAME = "foredraft"


@dataclass(frozen=True, slots=True)
class Ambient:
    """What a running forward reads: the plan, the layers it writes to, and each layer's sliding window by config."""

    plan: StepPlan
    layers: LayerGroup
    windows: dict[int, int | None]


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


@dataclass(slots=True)
class Holder:
    current: Ambient | None = None


holder = Holder()


@contextmanager
def running(ambient: Ambient) -> Iterator[None]:
    """Make `ambient` visible to the attention function for one forward."""
    assert holder.current is None, "a forward is already running"
    holder.current = ambient
    try:
        yield
    finally:
        holder.current = None


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,  # [1, H, T, D]
    key: Tensor,  # [1, G, T, D]
    value: Tensor,  # [1, G, T, Dv]
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_,
) -> tuple[Tensor, None]:
    """Attention of a packed forward over the slot pool; returns [1, T, H, Dv] as transformers expects.

    Raises `ModelError` for a module with a mask or bias of its own: the plan alone says who sees whom.
    """
    assert holder.current is not None, "no forward is running"
    if attention_mask is not None or position_bias is not None:
        raise ModelError(f"{type(module).__name__} cannot be packed: it makes a mask or position bias of its own")
    attending = Attending(
        layer=module.layer_idx,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window=sliding_window or holder.current.windows[module.layer_idx],
        softcap=softcap,
        sinks=s_aux,
    )
    return attend_packed(query, key, value, attending, holder.current.plan, holder.current.layers), None


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, attending: Attending, plan: StepPlan, layers: LayerGroup
) -> Tensor:
    """Store the rows' keys and values, then let each segment's rows attend to what they see, [1, T, H, Dv]."""
    layers.write(attending.layer, plan.write, key[0], value[0])
    attend = attend_fused if attending.plain else attend_spelled_out
    if len(plan.segments) == 1:
        [segment] = plan.segments
        return attend(query, *layers.read(attending.layer, segment.keys), segment, attending).contiguous()
    bunches, alone = bunches_of(plan, attending.window) if attending.plain else ([], plan.segments)
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    for bunch in bunches:
        bunch.write(out[0], query, attending.layer, attending.scale, layers)
    for segment in alone:
        keys, values = layers.read(attending.layer, segment.keys)
        out[:, segment.row_slice] = attend(query[:, :, segment.row_slice], keys, values, segment, attending)
    return out


def attend_fused(query: Tensor, keys: Tensor, values: Tensor, segment: Segment, attending: Attending) -> Tensor:
    """Fused attention; query heads that share a key head become more rows of it, so keys are read once."""
    _, heads, rows, size = query.shape
    groups = keys.shape[0]
    repeat = heads // groups
    folded = query.reshape(1, groups, repeat * rows, size)
    bias = segment.bias(attending.window, repeat, query.dtype)
    out = scaled_dot_product_attention(folded, keys[None], values[None], attn_mask=bias, scale=attending.scale)
    return out.reshape(1, heads, rows, -1).transpose(1, 2)  # [1, R, H, Dv]


def attend_spelled_out(query: Tensor, keys: Tensor, values: Tensor, segment: Segment, attending: Attending) -> Tensor:
    """Attention step by step, for logit soft-capping (Gemma 2) and attention sinks (gpt-oss)."""
    _, heads, rows, size = query.shape
    groups = keys.shape[0]
    repeat = heads // groups
    folded = query.reshape(groups, repeat * rows, size)
    scores = (folded @ keys.transpose(1, 2) * attending.scale).float()  # [G, repeat * R, S]
    if attending.softcap is not None:
        scores = torch.tanh(scores / attending.softcap) * attending.softcap
    bias = segment.bias(attending.window, repeat, torch.float32)
    if bias is not None:
        scores = scores + bias
    weights = softmax_with_sinks(scores, attending.sinks, repeat, rows)
    out = weights.to(values.dtype) @ values  # [G, repeat * R, Dv]
    return out.reshape(1, heads, rows, -1).transpose(1, 2)  # [1, R, H, Dv]


def softmax_with_sinks(scores: Tensor, sinks: Tensor | None, repeat: int, rows: int) -> Tensor:
    """Softmax over keys; a sink is one more logit a head that takes weight and gives no value."""
    if sinks is None:
        return scores.softmax(-1)
    column = sinks.float().reshape(-1, repeat, 1).expand(-1, repeat, rows).reshape(-1, repeat * rows, 1)
    return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]


AttentionInterface.register(NAME, packed_attention)
