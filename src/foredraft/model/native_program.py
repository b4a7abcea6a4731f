"""From a model's parts to a program of the native path: which op reads and writes which buffer.

Sections, so that a run can leave parts out: 2 i is the attention of layer i, 2 i + 1 its MLP; then the embedding, the
last norm with the logits, and the vocabulary head alone, for who brings hidden states of its own.

Shapes: T rows of the run, R wanted rows, H query heads, G key-value heads, D head size.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.model.features import FINAL_NORM
from foredraft.model.int8_weights import GROUP
from foredraft.model.native_parts import AttentionPart, GatedPart, ModelParts, NormPart

SAME, INT8 = "same", "int8"
ALWAYS = -1
View = tuple[int, int, int]  # buffer, first column, columns


@dataclass(frozen=True, slots=True)
class Sections:
    """Numbers of a program's sections for a model of `layers` layers."""

    layers: int

    @property
    def embedding(self) -> int:
        return 2 * self.layers

    @property
    def finish(self) -> int:
        return 2 * self.layers + 1

    @property
    def head(self) -> int:
        return 2 * self.layers + 2

    @property
    def all(self) -> range:
        return range(2 * self.layers + 3)

    @staticmethod
    def attention(layer: int) -> int:
        return 2 * layer

    @staticmethod
    def mlp(layer: int) -> int:
        return 2 * layer + 1


class ProgramBuilder:
    """Writes a model's parts into an empty program.

    Attributes:
        program: The program.
        weights: Format of its matrices, same or int8.
        release: Whether each linear gives up its weight as soon as the program holds it: a model need not fit twice.
        widest: Buffers by what they hold; layers share them.
    """

    def __init__(self, program: Any, parts: ModelParts, *, weights: str, release: bool):
        self.program, self.parts, self.weights, self.release = program, parts, weights, release
        attentions, mlps = [layer.attention for layer in parts.layers], [layer.mlp for layer in parts.layers]
        width = parts.embedding.embedding_dim
        self.hidden, self.normed, self.added, self.last = (self.buffer(width) for _ in range(4))  # [T, width]
        self.projected = self.buffer(max(sum(one.out_features for one in a.projections) for a in attentions))
        self.mixed = self.buffer(max(a.output.in_features for a in attentions))
        self.inner = self.buffer(max(mlp.down.in_features for mlp in mlps))

    def buffer(self, width: int) -> View:
        return (self.program.buffer(width), 0, width)

    def build(self) -> int:
        """Write everything down; which matrix is the vocabulary head."""
        program, parts, sections = self.program, self.parts, Sections(len(self.parts.layers))
        rotations = {kind: program.rotary(*rotation) for kind, rotation in parts.rotations.items()}
        program.section(sections.embedding)
        program.tokens_embedded(self.hidden, parts.embedding.weight, parts.embedding_scale)
        for index, layer in enumerate(parts.layers):
            program.section(ALWAYS)
            program.keep(index, self.hidden)
            program.section(sections.attention(index))
            source = self.entered(layer.before_attention)
            self.attend(layer.attention, source, rotations)
            self.leave(layer.attention.output, self.mixed, layer.behind_attention)
            program.section(sections.mlp(index))
            source = self.entered(layer.before_mlp)
            inner = self.transform(layer.mlp, source)
            self.leave(layer.mlp.down, inner, layer.behind_mlp)
        program.section(ALWAYS)
        program.keep(len(parts.layers), self.hidden)
        return self.finish(sections)

    def finish(self, sections: Sections) -> int:
        """Logits of the wanted rows; the head alone has no bound: in transformers the bound is no part of the head."""
        program, norm = self.program, self.parts.norm
        head = self.matrix([self.parts.head])
        program.section(sections.finish)
        program.keep(FINAL_NORM, self.hidden, norm.weight, norm.eps, norm.wide)
        program.select_rows(self.last, self.hidden)
        self.norm(self.last, self.last, norm)
        program.logits(self.last, head, softcap=self.parts.softcap or 0.0)
        program.section(sections.head)
        program.input(self.last, 0)
        program.logits(self.last, head)
        return head

    def entered(self, norm: NormPart | None) -> View:
        """Where a sublayer reads: the residual stream, normed where there is a norm."""
        if norm is None:
            return self.hidden
        self.norm(self.normed, self.hidden, norm)
        return self.normed

    def leave(self, linear: nn.Linear, source: View, norm: NormPart | None) -> None:
        """Back onto the residual stream, through a norm where there is one."""
        matrix, bias = self.matrix([linear]), self.bias([linear])
        if norm is None:
            self.program.linear(self.hidden, source, matrix, bias=bias, residual=self.hidden)
            return
        self.program.linear(self.added, source, matrix, bias=bias)
        self.norm(self.added, self.added, norm)
        self.program.add(self.hidden, self.hidden, self.added)

    def attend(self, part: AttentionPart, source: View, rotations: dict[str, int]) -> None:
        queries, keys = part.heads * part.head_size, part.kv_heads * part.head_size
        buffer = self.projected[0]
        projected = (buffer, 0, queries + 2 * keys)
        bias = self.bias(part.projections)
        self.program.linear(projected, source, self.matrix(part.projections), bias=bias)
        if part.normed_whole:
            for view, norm in (((buffer, 0, queries), part.query_norm), ((buffer, queries, keys), part.key_norm)):
                self.norm(view, view, norm)
        self.program.attend(
            (self.mixed[0], 0, queries),
            projected,
            layer=part.layer,
            heads=part.heads,
            kv_heads=part.kv_heads,
            head_size=part.head_size,
            scale=part.scale,
            window=part.window or 0,
            softcap=part.softcap or 0.0,
            rotary=-1 if part.rotation is None else rotations[part.rotation],
            **({} if part.normed_whole else head_norms(part)),
        )

    def transform(self, part: GatedPart, source: View) -> View:
        inner = (self.inner[0], 0, part.down.in_features)
        halves = [one.weight for one in part.lead]
        gate, up = halves if len(halves) == 2 else halves[0].chunk(2)
        matrix = self.program.gated_matrix(gate.detach(), up.detach(), self.form(gate.shape[1]))
        self.let_go(part.lead)
        self.program.gated(inner, source, matrix, part.activation)
        return inner

    def norm(self, target: View, source: View, norm: NormPart) -> None:
        self.program.norm(target, source, norm.weight, norm.eps, norm.wide)

    def matrix(self, linears: list[nn.Linear]) -> int:
        """One matrix of the rows of all `linears`, which read the same input."""
        weights = [one.weight.detach() for one in linears]
        whole = weights[0] if len(weights) == 1 else torch.cat(weights)
        matrix = self.program.matrix(whole, self.form(whole.shape[1]))
        self.let_go(linears)
        return matrix

    @staticmethod
    def bias(linears: list[nn.Linear]) -> Tensor | None:
        return None if linears[0].bias is None else torch.cat([one.bias.detach() for one in linears])

    def form(self, columns: int) -> str:
        """int8 needs whole groups of columns."""
        return SAME if columns % GROUP else self.weights

    def let_go(self, linears: list[nn.Linear]) -> None:
        for one in linears if self.release else ():
            one.weight = None


def head_norms(part: AttentionPart) -> dict[str, Any]:
    if part.query_norm is None:
        return {}
    query, key = part.query_norm, part.key_norm
    return {"query_norm": query.weight, "key_norm": key.weight, "norm_eps": query.eps, "norm_wide": query.wide}


def released(module: nn.Module) -> bool:
    """Whether some linear of `module` has given up its weight."""
    return any(type(part) is nn.Linear and part.weight is None for part in module.modules())
