"""Ops of a head's program, written from the head's modules, which keep their weights."""

from typing import Any

import torch
from torch import Tensor, nn

from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_parts import embedding_of, norm_part
from foredraft.model.native_program import SAME, View


class HeadWriter:
    """Writes into an empty program."""

    def __init__(self, program: Any):
        self.program = program

    def buffer(self, width: int) -> View:
        return (self.program.buffer(width), 0, width)

    def embed(self, dst: View, embedding: nn.Module) -> None:
        """Embeddings of the rows' tokens; the table stays where it is."""
        table, scale = embedding_of(embedding)
        self.program.tokens_embedded(dst, table.weight.detach(), scale)

    def norm(self, dst: View, src: View, norm: nn.Module) -> None:
        part = norm_part(norm)
        self.program.norm(dst, src, part.weight, part.eps, part.wide)

    def linear(self, dst: View, src: View, *linears: nn.Linear, residual: View | None = None) -> None:
        """One product for all `linears`, side by side, plus `residual`."""
        self.program.linear(dst, src, self.matrix(*linears), bias=bias_of(linears), residual=residual)

    def matrix(self, *linears: nn.Linear) -> int:
        weights = [one.weight.detach() for one in linears]
        return self.program.matrix(weights[0].contiguous() if len(weights) == 1 else torch.cat(weights), SAME)

    def borrowed_logits(self, src: View, target: NativeDecoder) -> None:
        """Logits by the vocabulary head of the `target`, whose weight is shared."""
        self.program.logits(src, self.program.matrix_of(target.program, target.head_matrix))


def bias_of(linears: tuple[nn.Linear, ...]) -> Tensor | None:
    return None if linears[0].bias is None else torch.cat([one.bias.detach() for one in linears])
