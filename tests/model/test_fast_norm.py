"""The fast RMS norm replaces a norm only where it computes the same."""

import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from foredraft.model.fast_norm import FastRMSNorm, replace_norms

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


class OffsetRMSNorm(LlamaRMSNorm):
    def forward(self, x):
        return super().forward(x) + 0.5


def model_with(norm: nn.Module, dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    norm.weight.data.normal_()
    return nn.ModuleDict({"inner": nn.ModuleDict({"norm": norm.to(dtype)})}).requires_grad_(False)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("kind", [LlamaRMSNorm, Gemma2RMSNorm])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_fast_norm_equals_the_module(kind, dtype, scale):
    norm = kind(48, eps=1e-5)
    model = model_with(norm, dtype)
    replace_norms(model)
    fast = model["inner"]["norm"]
    assert isinstance(fast, FastRMSNorm)
    x = (scale * torch.randn(2, 5, 48, generator=torch.Generator().manual_seed(3))).to(dtype)
    before = x.clone()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(fast(x), norm(x), rtol=tolerance, atol=tolerance)
    assert torch.equal(x, before), "the input was changed in place"


@pytest.mark.parametrize("norm", [OffsetRMSNorm(16), nn.LayerNorm(16)], ids=["other formula", "other norm"])
def test_other_norms_stay(norm):
    model = model_with(norm, torch.float32)
    replace_norms(model)
    assert model["inner"]["norm"] is norm
