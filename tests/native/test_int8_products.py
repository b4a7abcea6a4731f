"""Products by int8 weights: whole sums are exact in every set of kernels, and no group of a row is beyond rounding."""

import foredraft_native as native
import pytest
import torch
from reference_program import rounded_rows
from small_decoder import KERNELS
from test_borrowed_matrices import INPUTS, product_by
from torch import Tensor

OUTPUTS = 150
ROWS = (1, 2, 7, 16, 50)


def int8_product(kernels: str, weight: Tensor, x: Tensor) -> Tensor:
    program = native.Program("fp32", kernels, native.Threads(2))
    return product_by(program, program.matrix(weight, "int8"), x, len(weight))


def whole_numbers(rows: int, seed: int) -> Tensor:
    """[rows, INPUTS] from -127 to 127; each group has a 127, so its scale is 1."""
    numbers = torch.randint(-127, 128, (rows, INPUTS), generator=torch.Generator().manual_seed(seed)).float()
    numbers[:, ::64] = 127
    return numbers


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("rows", ROWS)
def test_sums_of_whole_numbers_are_exact(kernels, rows):
    weight, x = whole_numbers(OUTPUTS, 1), whole_numbers(rows, 2)
    assert torch.equal(int8_product(kernels, weight, x), x @ weight.T)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("outputs", [150, 520], ids=["narrow groups", "wide groups"])
def test_a_row_is_the_same_bits_among_any_number_of_rows(kernels, outputs):
    generator = torch.Generator().manual_seed(5)
    weight, x = (torch.randn(count, INPUTS, generator=generator) for count in (outputs, 70))
    alone = torch.cat([int8_product(kernels, weight, row[None]) for row in x])
    for rows in (2, 8, 9, 16, 17, 32, 33, 50, 70):
        assert torch.equal(int8_product(kernels, weight, x[:rows]), alone[:rows])


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_do_not_saturate(kernels, sign):
    weight, x = torch.full((OUTPUTS, INPUTS), 127.0), torch.full((3, INPUTS), 127.0 * sign)
    assert torch.equal(int8_product(kernels, weight, x), torch.full((3, OUTPUTS), INPUTS * 127.0 * 127 * sign))


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_no_number_shows_in_its_own_row(kernels, bad):
    weight, x = whole_numbers(OUTPUTS, 1), whole_numbers(3, 2)
    wanted = x @ weight.T
    x[1, 70] = bad
    got = int8_product(kernels, weight, x)
    assert got[1].isnan().all() and torch.equal(got[::2], wanted[::2])


@pytest.mark.parametrize("kernels", KERNELS)
def test_groups_of_any_size_are_rounded_for_themselves(kernels):
    weight = whole_numbers(OUTPUTS, 3)
    x = torch.randn(6, INPUTS, generator=torch.Generator().manual_seed(4))
    x[1] *= 1e30
    x[2] *= 1e-20
    x[3, :64] = 0
    x[4, :64] *= 1e-38  # too small for a scale: it counts as 0
    x[5] = 0
    wanted = rounded_rows(x.double()) @ weight.double().T
    got = int8_product(kernels, weight, x).double()
    assert torch.all((got - wanted).norm(dim=1) <= 1e-6 * wanted.norm(dim=1))
