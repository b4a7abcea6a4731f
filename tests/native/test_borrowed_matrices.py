"""A program borrows another one's matrix as it is, or takes an int8 copy: the same as int8 weights of its own."""

import foredraft_native as native
import pytest
import torch
from small_decoder import DTYPES, KERNELS
from torch import Tensor

INPUTS = 128


def product_by(program, matrix: int, x: Tensor, outputs: int) -> Tensor:
    rows, logits = len(x), torch.empty(len(x), outputs, dtype=x.dtype)
    entered, wanted = ((program.buffer(INPUTS), 0, INPUTS) for _ in range(2))
    program.input(entered, 0)
    program.select_rows(wanted, entered)
    program.logits(wanted, matrix)
    nothing = [0] * rows
    program.run(None, nothing, nothing, nothing, [], list(range(rows)), [], [], logits, [x], None, [])
    return logits


@pytest.mark.parametrize("outputs", [70, 600])
@pytest.mark.parametrize("form", ["same", "int8"])
@pytest.mark.parametrize("lent", ["same", "int8"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_borrowed_matrix_is_one_of_its_own(dtype, lent, form, outputs):
    threads, random = native.Threads(2), torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, INPUTS, generator=random).to(DTYPES[dtype])
    x = torch.randn(5, INPUTS, generator=random).to(DTYPES[dtype])
    lender, borrower, owner = (native.Program(dtype, KERNELS[0], threads) for _ in range(3))
    lender.matrix(weight, lent)
    matrix = borrower.matrix_of(lender, 0, form)
    del lender
    own = owner.matrix(weight, "int8" if "int8" in (lent, form) else "same")
    assert borrower.weight_bytes == owner.weight_bytes
    assert torch.equal(product_by(borrower, matrix, x, outputs), product_by(owner, own, x, outputs))


def test_gated_matrices_have_no_int8_copy():
    program = native.Program("bf16", KERNELS[0], native.Threads(1))
    gated = program.gated_matrix(torch.randn(6, 64), torch.randn(6, 64))
    with pytest.raises(ValueError, match="^a gated matrix has no int8 copy$"):
        program.matrix_of(program, gated, "int8")
