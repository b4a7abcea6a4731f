"""Writes operations into a native program: what writers of targets and of heads have in common."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from foredraft.model.int8_weights import GROUP
from foredraft.model.native_parts import NormPart

SAME, INT8 = "same", "int8"
ALWAYS = -1  # the section that no run leaves out
View = tuple[int, int, int]  # buffer, first column, columns


class Product(NamedTuple):
    """A matrix of a program, and the bias that goes with it."""

    matrix: int
    bias: Tensor | None


class ProgramWriter:
    """Writes into a program.

    Attributes:
        program: The program.
        weights: Format of its matrices, same or int8.
        release: Whether each linear gives up its weight as soon as the program holds it: a model need not fit twice.
    """

    def __init__(self, program: Any, *, weights: str = SAME, release: bool = False):
        self.program, self.weights, self.release = program, weights, release

    def buffer(self, width: int) -> View:
        return (self.program.buffer(width), 0, width)

    def embed(self, dst: View, embedding: nn.Embedding, scale: float) -> None:
        """Embeddings of the rows' tokens times `scale`; the table stays where it is."""
        self.program.tokens_embedded(dst, embedding.weight.detach(), scale)

    def norm(self, dst: View, src: View, norm: NormPart) -> None:
        self.program.norm(dst, src, norm.weight, norm.eps, norm.wide)

    def linear(self, dst: View, src: View, *linears: nn.Linear, residual: View | None = None) -> None:
        """What all `linears` say of `src`, side by side, plus `residual`."""
        self.multiply(dst, src, self.product(*linears), residual)

    def multiply(self, dst: View, src: View, product: Product, residual: View | None = None) -> None:
        self.program.linear(dst, src, product.matrix, bias=product.bias, residual=residual)

    def product(self, *linears: nn.Linear) -> Product:
        """One product of all `linears`; all have a bias or none has."""
        biased = linears[0].bias is not None
        bias = torch.cat([one.bias.detach() for one in linears]) if biased else None
        return Product(self.matrix(*linears), bias)

    def matrix(self, *linears: nn.Linear) -> int:
        """One matrix of the rows of all `linears`, which read the same input."""
        weights = [one.weight.detach() for one in linears]
        whole = weights[0].contiguous() if len(weights) == 1 else torch.cat(weights)
        matrix = self.program.matrix(whole, self.form(whole.shape[1]))
        self.let_go(*linears)
        return matrix

    def form(self, columns: int) -> str:
        """int8 needs whole groups of columns."""
        return SAME if columns % GROUP else self.weights

    def let_go(self, *linears: nn.Linear) -> None:
        for one in linears if self.release else ():
            one.weight = None
