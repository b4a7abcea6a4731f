"""The attention function every loaded model runs through, and the ambient plan that tells it who sees what.

A plain module-level holder, not a context variable: dynamo cannot trace those. One forward runs at a time.

Shapes: T rows of the pack, H query heads, G key-value heads, R rows of a segment, S keys it sees, D head size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import AttentionInterface

from foredraft.core.errors import ModelError
from foredraft.core.step_plan import Segment, StepPlan
from foredraft.model.attending import Attending, attended
from foredraft.model.joint_attention import bunches_of
from foredraft.model.slot_pool import LayerGroup

NAME = "foredraft"


@dataclass(frozen=True, slots=True)
class Ambient:
    """What a running forward reads: the plan, the layers it writes to, and each layer's sliding window by config.

    `attend` takes the place of `attend_packed` where a plan is laid out in another way.
    """

    plan: StepPlan
    layers: LayerGroup
    windows: dict[int, int | None]
    attend: Callable | None = None


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
    attend = holder.current.attend or attend_packed
    return attend(query, key, value, attending, holder.current.plan, holder.current.layers), None


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, attending: Attending, plan: StepPlan, layers: LayerGroup
) -> Tensor:
    """Store the rows' keys and values, then let each segment's rows attend to what they see, [1, T, H, Dv]."""
    layers.write(attending.layer, plan.write, key[0], value[0])
    if len(plan.segments) == 1:
        [segment] = plan.segments
        return attend_alone(query, *layers.read(attending.layer, segment.keys), segment, attending).contiguous()
    bunches, alone = bunches_of(plan, attending.window) if attending.plain else ([], plan.segments)
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    for bunch in bunches:
        bunch.write(out[0], query, attending, layers)
    for segment in alone:
        keys, values = layers.read(attending.layer, segment.keys)
        out[:, segment.row_slice] = attend_alone(query[:, :, segment.row_slice], keys, values, segment, attending)
    return out


def attend_alone(query: Tensor, keys: Tensor, values: Tensor, segment: Segment, attending: Attending) -> Tensor:
    """One segment's rows [1, H, R, D] to the keys [G, S, D] and values [G, S, Dv] it sees, [1, R, H, Dv]."""
    return attended(query, keys[None], values[None], partial(segment.bias, attending.window), attending)


AttentionInterface.register(NAME, packed_attention)
