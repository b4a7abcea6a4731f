"""Writes decoder layers into a native program, those of targets and those of heads.

Shapes: T rows of the run, R wanted rows, H query heads, G key-value heads, D head size.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from foredraft.model.native_parts import AttentionPart, GatedPart, LayerPart, NormPart
from foredraft.model.program_writer import SAME, ProgramWriter, View


class LayerWriter(ProgramWriter):
    """Writes layers over buffers that they share, each as wide as the widest layer needs it.

    Attributes:
        hidden: The residual stream, [T, hidden].
        normed: What enters a sublayer, [T, hidden].
        aside: What leaves a sublayer on its way through a norm, [T, hidden].
        last: The residual stream of the wanted rows, [R, hidden].
        projected: Queries, keys and values side by side, [T, (H + 2 G) D].
        mixed: What the heads have gathered, [T, H D].
        inner: Between the products of an MLP, [T, intermediate].
        rotations: Numbers of the rotary frequencies by kind of layer.
    """

    def __init__(
        self,
        program: Any,
        layers: Sequence[LayerPart],
        rotations: Mapping[str, tuple[Tensor, float]],
        *,
        weights: str = SAME,
        release: bool = False,
    ):
        super().__init__(program, weights=weights, release=release)
        width = layers[0].attention.output.out_features
        self.hidden, self.normed, self.aside, self.last = (self.buffer(width) for _ in range(4))
        self.projected = self.buffer(max(layer.attention.queries + 2 * layer.attention.keys for layer in layers))
        self.mixed = self.buffer(max(layer.attention.output.in_features for layer in layers))
        self.inner = self.buffer(max(layer.mlp.down.in_features for layer in layers))
        self.rotations = {kind: program.rotary(*rotation) for kind, rotation in rotations.items()}

    def attention(self, layer: LayerPart, source: View | None = None, residual: View | None = None) -> None:
        """The first half of `layer`, from `hidden` onto it.

        `source` enters in place of `hidden`, already normed; `residual` passes by in place of `hidden`.
        """
        part = layer.attention
        self.project(part, source or self.entered(layer.before_attention))
        self.mix(part)
        self.leave(part.output, self.mixed, layer.behind_attention, residual or self.hidden)

    def mlp(self, layer: LayerPart) -> None:
        """The second half."""
        self.gate(layer.mlp, self.entered(layer.before_mlp))
        self.leave(layer.mlp.down, self.inner, layer.behind_mlp, self.hidden)

    def entered(self, norm: NormPart | None) -> View:
        """Where a sublayer reads: the residual stream, normed where there is a norm."""
        if norm is None:
            return self.hidden
        self.norm(self.normed, self.hidden, norm)
        return self.normed

    def project(self, part: AttentionPart, source: View) -> None:
        """To `projected`."""
        self.linear(first_columns(self.projected, part.queries + 2 * part.keys), source, *part.projections)

    def mix(self, part: AttentionPart) -> None:
        """Let the `projected` rows see what the plan says."""
        if part.normed_whole:
            self.norm_whole(part)
        self.program.attend(
            first_columns(self.mixed, part.queries),
            first_columns(self.projected, part.queries + 2 * part.keys),
            layer=part.layer,
            heads=part.heads,
            kv_heads=part.kv_heads,
            head_size=part.head_size,
            scale=part.scale,
            window=part.window or 0,
            softcap=part.softcap or 0.0,
            rotary=self.rotation(part),
            **({} if part.normed_whole else head_norms(part)),
        )

    def norm_whole(self, part: AttentionPart) -> None:
        """Norm queries and keys over all heads together."""
        buffer, start, _ = self.projected
        queries, keys = (buffer, start, part.queries), (buffer, start + part.queries, part.keys)
        self.norm(queries, queries, part.query_norm)
        self.norm(keys, keys, part.key_norm)

    def rotation(self, part: AttentionPart) -> int:
        return -1 if part.rotation is None else self.rotations[part.rotation]

    def gate(self, part: GatedPart, source: View) -> None:
        """To `inner`."""
        halves = [one.weight.detach() for one in part.lead]
        gate, up = halves if len(halves) == 2 else halves[0].chunk(2)
        matrix = self.program.gated_matrix(gate, up, self.form(gate.shape[1]))
        self.let_go(*part.lead)
        self.program.gated(first_columns(self.inner, part.down.in_features), source, matrix, part.activation)

    def leave(self, linear: nn.Linear, buffer: View, norm: NormPart | None, residual: View) -> None:
        """From the first columns of `buffer` onto the residual stream, through a norm where there is one."""
        source = first_columns(buffer, linear.in_features)
        if norm is None:
            self.linear(self.hidden, source, linear, residual=residual)
            return
        self.linear(self.aside, source, linear)
        self.norm(self.aside, self.aside, norm)
        self.program.add(self.hidden, residual, self.aside)


def first_columns(view: View, columns: int) -> View:
    """The first `columns` of `view`."""
    buffer, start, _ = view
    return (buffer, start, columns)


def head_norms(part: AttentionPart, *, queries: bool = True) -> dict[str, Any]:
    """The norms of each query and key head as options of an op, none where there are none."""
    if part.query_norm is None:
        return {}
    key = part.key_norm
    norms = {"key_norm": key.weight, "norm_eps": key.eps, "norm_wide": key.wide}
    return norms | ({"query_norm": part.query_norm.weight} if queries else {})
