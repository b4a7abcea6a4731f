"""Weights stored as int8 with one scale for each group of a row: half the size of bf16 on disk, run in bf16 or fp32."""

import os
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

INT8_FILE = "model.int8.safetensors"
GROUP = 64


def write_int8(state: dict[str, Tensor], path: Path) -> None:
    """Write every matrix of `state` as `NAME.int8` and `NAME.scale`, everything else in fp32."""
    stored: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if tensor.ndim == 2 and tensor.shape[1] % GROUP == 0:
            stored[f"{name}.int8"], stored[f"{name}.scale"] = quantized(tensor.float())
        else:
            stored[name] = tensor.float().contiguous()
    save_file(stored, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to nearest with symmetric scales: [out, in] to int8 [out, in] and fp16 [out, in / GROUP]."""
    groups = weight.unflatten(1, (-1, GROUP))
    scale = (groups.abs().amax(-1) / 127).clamp_min(1e-7).half()  # [out, in / GROUP]
    return (groups / scale.float()[..., None]).round().clamp(-127, 127).to(torch.int8).flatten(1), scale


def read_int8(path: Path, dtype: torch.dtype) -> dict[str, Tensor]:
    """The state dict `write_int8` was given, up to rounding, in `dtype`."""
    stored = load_file(path)
    state = {}
    for name, tensor in stored.items():
        if name.endswith(".int8"):
            name = name.removesuffix(".int8")
            scale = stored[f"{name}.scale"].float()[..., None]
            state[name] = (tensor.unflatten(1, (-1, GROUP)).float() * scale).flatten(1).to(dtype)
        elif not name.endswith(".scale"):
            state[name] = tensor.to(dtype)
    return state
