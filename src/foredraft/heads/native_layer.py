"""Reads a head's own layers as the parts that the native path computes."""

from collections.abc import Iterable

from torch import nn

from foredraft.heads.layer import HeadAttention, HeadLayer
from foredraft.model.native_parts import AttentionPart, LayerPart, NormPart, gated_part, norm_part
from foredraft.model.native_runtime import NotCovered

ROTATION = ""  # key of the rotary frequencies, which all layers of a head share


def layer_parts(layers: Iterable[nn.Module]) -> list[LayerPart]:
    """The parts of `layers`. Raises `NotCovered` for layers that are not our own, `StrangePart` for parts of them."""
    return [layer_part(layer) for layer in layers]


def layer_part(layer: nn.Module) -> LayerPart:
    if not isinstance(layer, HeadLayer):
        raise NotCovered(f"native kernels do not cover a head of {type(layer).__name__}")
    return LayerPart(
        attention=attention_part(layer.self_attn, layer.index),
        mlp=gated_part(layer.mlp),
        before_attention=norm_or_none(layer.input_layernorm),
        behind_attention=None,
        before_mlp=norm_part(layer.post_attention_layernorm),
        behind_mlp=None,
    )


def attention_part(attention: HeadAttention, layer: int) -> AttentionPart:
    sizes = attention.sizes
    return AttentionPart(
        layer=layer,
        projections=[attention.q_proj, attention.k_proj, attention.v_proj],
        output=attention.o_proj,
        query_norm=norm_or_none(attention.q_norm),
        key_norm=norm_or_none(attention.k_norm),
        heads=sizes.heads,
        kv_heads=sizes.kv_heads,
        head_size=sizes.head_dim,
        scale=sizes.head_dim**-0.5,
        window=None,
        softcap=None,
        rotation=ROTATION,
    )


def norm_or_none(norm: nn.Module) -> NormPart | None:
    return None if isinstance(norm, nn.Identity) else norm_part(norm)
