"""CPU fast path: linear weights laid out once for the matrix units, neighbouring projections fused into one.

A packed weight is read at close to the speed of memory for up to a dozen rows, where the stock layout pays again for
every call. Projections that read the same input (query, key, value; gate, up) become one product.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
ROWS_EXPECTED = 8  # hint to the library for the tile shape; any number of rows works


def packing_available(dtype: torch.dtype) -> bool:
    """Whether oneDNN can pack weights of `dtype` here; tried, not guessed."""
    try:
        weight = torch.randn(32, 16).to(dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_EXPECTED)
        product = torch.ops.mkldnn._linear_pointwise(weight[:2, :16], packed, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return torch.allclose(product.float(), weight[:2].float() @ weight.float().T, atol=0.1, rtol=0.05)


class PackedLinear(nn.Module):
    """`y = x W^T + b` over a packed weight, [..., in] to [..., out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_EXPECTED)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")


class FusedLead(nn.Module):
    """The first of several projections of one input: computes all of them and keeps the rest for its followers."""

    def __init__(self, linears: list[nn.Linear]):
        super().__init__()
        weight = torch.cat([linear.weight for linear in linears])
        bias = torch.cat([linear.bias for linear in linears]) if linears[0].bias is not None else None
        self.product = PackedLinear(weight, bias)
        self.sizes = [linear.out_features for linear in linears]
        self.last: tuple[Tensor, tuple[Tensor, ...]] | None = None

    def parts(self, x: Tensor) -> tuple[Tensor, ...]:
        if self.last is None or self.last[0] is not x:
            self.last = (x, self.product(x).split(self.sizes, dim=-1))
        return self.last[1]

    def forward(self, x: Tensor) -> Tensor:
        self.last = None  # a tensor's identity is no proof of its content: each call of the lead computes anew
        return self.parts(x)[0]


class FusedFollower(nn.Module):
    """A projection whose result its lead has computed for the same input."""

    def __init__(self, lead: FusedLead, index: int):
        super().__init__()
        self.lead = [lead]  # in a list: the lead is registered once, under its own name
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.lead[0].parts(x)[self.index]


def pack(model: nn.Module) -> None:
    """Replace the linear layers of `model` in place; what does not fit stays as it is."""
    for parent in list(model.modules()):
        for names in SIBLINGS:
            fuse(parent, names)
    for parent in list(model.modules()):
        for name, linear in plain_linears(parent):
            setattr(parent, name, PackedLinear(linear.weight, linear.bias))


def fuse(parent: nn.Module, names: tuple[str, ...]) -> None:
    linears = [getattr(parent, name, None) for name in names]
    if not all(type(linear) is nn.Linear for linear in linears):
        return
    if len({linear.in_features for linear in linears}) != 1 or len({linear.bias is None for linear in linears}) != 1:
        return
    lead = FusedLead(linears)
    setattr(parent, names[0], lead)
    for index, name in enumerate(names[1:], start=1):
        setattr(parent, name, FusedFollower(lead, index))


def plain_linears(parent: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, child in list(parent.named_children()):
        if type(child) is nn.Linear:
            yield name, child
