"""Packed and fused projections compute what the plain modules compute."""

import copy

import pytest
import torch
from tiny_models import load_packed, needs_packed, save_tiny, tiny_config
from torch import nn

from foredraft.model import devices, packed_model
from foredraft.model.packed_weights import FusedFollower, FusedLead, PackedLinear, pack

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
needs_packing = needs_packed(torch.float32)
both_dtypes = pytest.mark.parametrize("dtype", [pytest.param(dtype, marks=needs_packed(dtype)) for dtype in TOLERANCE])


class Attention(nn.Module):
    def __init__(self, bias: bool = False, value_inputs: int = 32):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(32, 48, bias=bias), nn.Linear(32, 16, bias=bias)
        self.v_proj = nn.Linear(value_inputs, 16, bias=bias)
        self.o_proj = nn.Linear(48, 32, bias=bias)


def made(dtype: torch.dtype, **options) -> tuple[Attention, Attention]:
    """A plain module and its packed copy."""
    torch.manual_seed(0)
    plain = Attention(**options).to(dtype).requires_grad_(False)
    packed = copy.deepcopy(plain)
    pack(packed)
    return plain, packed


def inputs(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def assert_same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    tolerance = TOLERANCE[wanted.dtype]
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)


@both_dtypes
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 32), (1, 7, 32), (40, 32), (2, 3, 32)])
def test_packed_equals_plain(dtype, bias, shape):
    plain, packed = made(dtype, bias=bias)
    assert isinstance(packed.q_proj, FusedLead) and isinstance(packed.o_proj, PackedLinear)
    x = inputs(dtype, *shape)
    for name in ("q_proj", "k_proj", "v_proj"):
        assert_same(getattr(packed, name)(x), getattr(plain, name)(x))
    y = inputs(dtype, *shape[:-1], 48)
    assert_same(packed.o_proj(y), plain.o_proj(y))


@both_dtypes
def test_follower_given_another_tensor_computes_anew(dtype):
    plain, packed = made(dtype)
    one, other = inputs(dtype, 3, 32), inputs(dtype, 3, 32) + 1
    packed.q_proj(one)
    assert_same(packed.k_proj(other), plain.k_proj(other))
    assert_same(packed.v_proj(one), plain.v_proj(one))


@needs_packing
def test_lead_called_again_on_a_changed_tensor_computes_anew():
    plain, packed = made(torch.float32)
    x = inputs(torch.float32, 3, 32)
    packed.q_proj(x), packed.k_proj(x)
    x.add_(1)
    assert_same(packed.q_proj(x), plain.q_proj(x))
    assert_same(packed.k_proj(x), plain.k_proj(x))


@needs_packing
def test_projections_of_different_inputs_are_not_fused():
    plain, packed = made(torch.float32, value_inputs=24)
    assert not any(isinstance(child, FusedLead | FusedFollower) for child in packed.children())
    x, y = inputs(torch.float32, 3, 32), inputs(torch.float32, 3, 24)
    assert_same(packed.q_proj(x), plain.q_proj(x))
    assert_same(packed.v_proj(y), plain.v_proj(y))


@needs_packing
def test_subclasses_of_linear_stay_as_they_are():
    class Scaled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    holder = nn.Module()
    holder.layer = Scaled(4, 4)
    pack(holder)
    assert type(holder.layer) is Scaled


def test_without_packing_the_module_path_is_taken_and_said(monkeypatch, tmp_path):
    folder = save_tiny(tiny_config("llama"), tmp_path)
    fast = load_packed(folder)
    monkeypatch.setattr(devices, "packing_available", lambda dtype: False)
    plain = load_packed(folder)
    assert plain.path.startswith("module path: oneDNN cannot pack torch.float32 weights on this CPU; ")
    assert not any(isinstance(module, PackedLinear) for module in plain.module.modules())
    torch.testing.assert_close(plain.trial_logits(), fast.trial_logits(), rtol=1e-4, atol=1e-4)


def break_a_weight(self, module: nn.Module) -> str:
    module.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    return "fast path"


def lose_an_attribute(self, module: nn.Module) -> str:
    del module.model.layers[1].mlp.down_proj
    return "fast path"


@pytest.mark.parametrize("damage", [break_a_weight, lose_an_attribute])
def test_a_fast_path_that_differs_is_not_taken(damage, monkeypatch, tmp_path):
    folder = save_tiny(tiny_config("llama"), tmp_path)
    wanted = load_packed(folder).trial_logits()
    monkeypatch.setattr(devices.CpuDevice, "prepare", damage)
    model = load_packed(folder)
    assert model.path.startswith("module path: the fast path did not reproduce it on this model; ")
    torch.testing.assert_close(model.trial_logits(), wanted, rtol=1e-4, atol=1e-4)


def test_weight_bytes_count_tied_tensors_once(tmp_path):
    tied = load_packed(save_tiny(tiny_config("llama", tie_word_embeddings=True), tmp_path / "tied"))
    untied = load_packed(save_tiny(tiny_config("llama", tie_word_embeddings=False), tmp_path / "untied"))
    assert untied.weight_bytes - tied.weight_bytes == 96 * 32 * 4
    assert packed_model.PackedModel.bytes_per_token.fget(tied) == 3 * 2 * (8 + 8) * 4
