"""Writes a head's program from its layers, and what else it is made of.

Shapes: T rows of the run, R wanted rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

from foredraft.heads.layer import Rotary
from foredraft.heads.native_layer import ROTATION
from foredraft.model.layer_writer import LayerWriter
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_parts import LayerPart, NormPart, rotation_of
from foredraft.model.program_writer import ALWAYS, View

FEATURES, HANDED = 0, 1  # sections for rows that follow captured features, and for those that follow other rows
FUSED = 0  # the boundary under which leaves what features became for the head


class HeadWriter(LayerWriter):
    """Writes a head of decoder layers into an empty program; its modules keep their weights."""

    def __init__(self, program: Any, layers: Sequence[LayerPart], rotary: Rotary, weights: str):
        super().__init__(program, layers, {ROTATION: rotation_of(rotary.rotary, ROTATION)}, weights=weights)

    def layer(self, layer: LayerPart, source: View | None = None, residual: View | None = None) -> None:
        """A whole layer; `source` and `residual` as of `attention`."""
        self.attention(layer, source, residual)
        self.mlp(layer)

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

    def select(self) -> View:
        """The wanted rows of the residual stream, [R, hidden]."""
        self.program.select_rows(self.last, self.hidden)
        return self.last

    def select_normed(self, norm: NormPart) -> View:
        """As `select`, behind `norm`; the rows as they were stay in `last`."""
        self.norm(self.aside, self.select(), norm)
        return self.aside

    def borrowed_logits(self, src: View, target: NativeDecoder) -> None:
        """Logits by the vocabulary head of the `target`.

        Its weight is shared where the formats are one. An int8 head takes a copy of a bf16 one, which goes with the
        head: half as much memory more, and half as much to read in every draft.
        """
        own = self.program.matrix_of(target.program, target.head_matrix, self.form(target.width))
        self.program.logits(src, own)
