"""From a model's parts to a program of the native path.

Sections, so that a run can leave parts out: 2 i is the attention of layer i, 2 i + 1 its MLP; then the embedding, the
last norm with the logits, and the vocabulary head alone, for who brings hidden states of its own.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from foredraft.model.features import FINAL_NORM
from foredraft.model.layer_writer import LayerWriter
from foredraft.model.native_parts import ModelParts
from foredraft.model.program_writer import ALWAYS


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


def write_model(program: Any, parts: ModelParts, *, weights: str, release: bool) -> int:
    """Write `parts` into an empty program, `weights` and `release` as of `ProgramWriter`.

    Returns:
        Number of the vocabulary head's matrix.
    """
    writer = LayerWriter(program, parts.layers, parts.rotations, weights=weights, release=release)
    sections = Sections(len(parts.layers))
    program.section(sections.embedding)
    writer.embed(writer.hidden, parts.embedding, parts.embedding_scale)
    for index, layer in enumerate(parts.layers):
        program.section(ALWAYS)
        program.keep(index, writer.hidden)
        program.section(sections.attention(index))
        writer.attention(layer)
        program.section(sections.mlp(index))
        writer.mlp(layer)
    program.section(ALWAYS)
    program.keep(len(parts.layers), writer.hidden)
    return write_finish(writer, parts, sections)


def write_finish(writer: LayerWriter, parts: ModelParts, sections: Sections) -> int:
    """Logits of the wanted rows; the head alone has no bound: in transformers the bound is no part of the head."""
    program, last, norm = writer.program, writer.last, parts.norm
    head = writer.matrix(parts.head)
    program.section(sections.finish)
    program.keep(FINAL_NORM, writer.hidden, norm.weight, norm.eps, norm.wide)
    program.select_rows(last, writer.hidden)
    writer.norm(writer.normed, last, norm)
    program.logits(writer.normed, head, softcap=parts.softcap or 0.0)
    program.section(sections.head)
    program.input(last, 0)
    program.logits(last, head)
    return head


def released(module: nn.Module) -> bool:
    """Whether some linear of `module` has given up its weight."""
    return any(type(part) is nn.Linear and part.weight is None for part in module.modules())
