"""A head's layers as ops of the native path: the same blocks the target is made of.

Shapes: T rows of the run, R wanted rows.
"""

from collections.abc import Callable
from typing import Any

from torch import nn

from foredraft.heads.layer import HeadAttention, HeadLayer, LayerSizes, Rotary
from foredraft.heads.native_writer import HeadWriter
from foredraft.model.native_parts import activation_name, norm_part, rotation_of
from foredraft.model.native_program import ALWAYS, SAME, View
from foredraft.model.native_runtime import NotCovered

FEATURES, HANDED = 0, 1  # sections for rows that follow captured features, and for those that follow other rows
FUSED = 0  # the boundary under which leaves what features became for the head


class LayerWriter(HeadWriter):
    """Writes a head of decoder layers into an empty program.

    Attributes:
        hidden: The residual stream, [T, hidden].
        normed: What enters a sublayer, [T, hidden].
        last: The residual stream of the wanted rows, [R, hidden], once `select` was called.
        final: `last` behind the head's norm, [R, hidden].
    """

    def __init__(self, program: Any, sizes: LayerSizes, rotary: Rotary):
        super().__init__(program)
        self.sizes = sizes
        width = sizes.hidden_size
        self.hidden, self.normed, self.last, self.final = (self.buffer(width) for _ in range(4))
        self.queries, self.keys = sizes.heads * sizes.head_dim, 2 * sizes.kv_heads * sizes.head_dim  # columns
        self.projected = self.buffer(self.queries + self.keys)
        self.mixed = self.buffer(self.queries)
        self.inner = self.buffer(sizes.intermediate_size)
        self.rotation = program.rotary(*rotation_of(rotary.rotary, ""))

    def layer(self, layer: HeadLayer, source: View | None = None, residual: View | None = None) -> None:
        """A decoder layer on `hidden`.

        `source` enters the attention in place of the normed `hidden`, `residual` passes it by in place of `hidden`.
        """
        self.attend(layer.self_attn, layer.index, source or self.entered(layer.input_layernorm))
        self.linear(self.hidden, self.mixed, layer.self_attn.o_proj, residual=residual or self.hidden)
        self.transform(layer)

    def entered(self, norm: nn.Module) -> View:
        """Where a sublayer reads: the residual stream, normed where there is a norm."""
        if isinstance(norm, nn.Identity):
            return self.hidden
        self.norm(self.normed, self.hidden, norm)
        return self.normed

    def attend(self, attention: HeadAttention, layer: int, source: View) -> None:
        self.linear(self.projected, source, attention.q_proj, attention.k_proj, attention.v_proj)
        self.mix(attention, layer)

    def mix(self, attention: HeadAttention, layer: int) -> None:
        """Let the `projected` rows see what the plan says."""
        sizes = self.sizes
        self.program.attend(
            self.mixed,
            self.projected,
            layer=layer,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_size=sizes.head_dim,
            scale=sizes.head_dim**-0.5,
            rotary=self.rotation,
            **head_norms(attention),
        )

    def transform(self, layer: HeadLayer) -> None:
        self.norm(self.normed, self.hidden, layer.post_attention_layernorm)
        mlp = layer.mlp
        matrix = self.program.gated_matrix(mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach(), SAME)
        self.program.gated(self.inner, self.normed, matrix, activation_name(mlp.act_fn))
        self.linear(self.hidden, self.inner, mlp.down_proj, residual=self.hidden)

    def entry(self, view: View, features: View | None = None, fuse: Callable[[], None] | None = None) -> None:
        """Fill `view` with what rows hand on, or with captured features: as they are, or from `features` by `fuse`."""
        self.program.section(FEATURES)
        self.program.input(features or view, 0)
        if fuse is not None:
            fuse()
        self.program.keep(FUSED, view)
        self.program.section(HANDED)
        self.program.input(view, 0)
        self.program.section(ALWAYS)

    def select(self, norm: nn.Module | None = None) -> View:
        """The wanted rows of the residual stream, behind `norm` where one is given."""
        self.program.select_rows(self.last, self.hidden)
        if norm is None:
            return self.last
        self.norm(self.final, self.last, norm)
        return self.final


def head_norms(attention: HeadAttention, *, queries: bool = True) -> dict[str, Any]:
    """The norms of each query and key head as options of an op, none where there are none."""
    if isinstance(attention.q_norm, nn.Identity):
        return {}
    key = norm_part(attention.k_norm)
    norms = {"key_norm": key.weight, "norm_eps": key.eps, "norm_wide": key.wide}
    return norms | ({"query_norm": norm_part(attention.q_norm).weight} if queries else {})


def own_layers(layers: list[nn.Module]) -> list[HeadLayer]:
    """`layers`, if all of them are of our own kind. Raises `NotCovered` otherwise."""
    strange = [type(layer).__name__ for layer in layers if not isinstance(layer, HeadLayer)]
    if strange:
        raise NotCovered(f"native kernels do not cover a head of {strange[0]}")
    return layers
