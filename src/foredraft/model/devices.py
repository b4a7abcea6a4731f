"""One object per device: its dtype, how it prepares a loaded module, how much memory it has. Callers never branch."""

import os
from typing import Protocol

import torch
from torch import nn

from foredraft.core.errors import ConfigError, require
from foredraft.core.speculation_config import one_of
from foredraft.model.decoder import Decoder, decoder_of
from foredraft.model.fast_norm import replace_norms
from foredraft.model.graphed_model import CudaGraphs, GraphableModel, GraphedModel
from foredraft.model.native_decoder import NativeDecoder, native_decoder_of
from foredraft.model.native_runtime import (
    AUTO,
    OFF,
    NotCovered,
    native_choice,
    native_here,
    require_native,
    runtime_for,
)
from foredraft.model.packed_weights import pack, packing_available
from foredraft.model.program_writer import INT8, SAME

DTYPES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp32": torch.float32, "float32": torch.float32}
DTYPES |= {"fp16": torch.float16, "float16": torch.float16}
DTYPES |= {INT8: torch.bfloat16}  # of activations and cache; weights are int8
DRAFT_INT8 = f"draft_weights is {INT8!r}"


class Device(Protocol):
    """A place to run forwards.

    Attributes:
        torch_device: As torch calls it.
        weights: Format of weights: that of the dtype, or int8.
        strict: Whether a model that cannot have them is refused; otherwise it keeps those of its dtype.
    """

    torch_device: torch.device
    weights: str
    strict: bool

    def fast_dtype(self) -> torch.dtype:
        """What torch computes fast in here."""

    def native_dtype(self) -> torch.dtype:
        """What the native path computes fast in here; torch's where there is none."""

    def drafts_elsewhere(self, dtype: torch.dtype) -> torch.dtype:
        """What a draft model for a target in `dtype` is in off the native path; no text depends on it."""

    def native_decoder(self, module: nn.Module, windows: dict[int, int | None]) -> NativeDecoder:
        """Move a loaded module, whose layers have `windows`, into the native path; its linears lose their weights.

        Raises `NotCovered` where the native path cannot run it; weights may be gone even so.
        """

    def for_drafts(self, weights: str, dtype: torch.dtype) -> "Device":
        """The same place for drafters of `dtype`, with `weights` as of `SpeculationConfig.draft_weights`.

        Raises `ConfigError` where int8 is asked for and cannot be had.
        """

    def prepare(self, module: nn.Module) -> str:
        """Rework a loaded module in place for speed; returns a line that says what was done and why."""

    def decoder(self, model: GraphableModel) -> Decoder | GraphedModel | None:
        """What may run the forwards of a prepared `model` in place of its module; none where it is built of other
        parts."""

    def free_memory(self) -> int:
        """Bytes that could be used now."""


class CpuDevice:
    """The CPU: the native extension where it is installed, else weights packed for its matrix units by oneDNN."""

    torch_device = torch.device("cpu")

    def __init__(self, native: str | None = None, weights: str = SAME, *, strict: bool = True):
        """`native`: auto, off or a kernel set; none leaves it to FOREDRAFT_NATIVE.

        Raises `ConfigError` for others, and for int8 weights without the native path.
        """
        self.native, self.weights, self.strict = native_choice(native), weights, strict
        if weights == INT8:
            require_native(self.native, f"dtype is {INT8!r}; ")

    def fast_dtype(self) -> torch.dtype:
        fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if fast else torch.float32

    def native_dtype(self) -> torch.dtype:
        """bf16 whatever the CPU computes in: kernels widen it as they read, and a step takes what it reads."""
        return torch.bfloat16 if native_here(self.native) else self.fast_dtype()

    def drafts_elsewhere(self, dtype: torch.dtype) -> torch.dtype:
        return self.fast_dtype() if dtype is torch.bfloat16 else dtype

    def native_decoder(self, module: nn.Module, windows: dict[int, int | None]) -> NativeDecoder:
        runtime = runtime_for(self.native, next(module.parameters()).dtype)
        return native_decoder_of(module, windows, runtime, weights=self.weights, release=True)

    def for_drafts(self, weights: str, dtype: torch.dtype) -> "CpuDevice":
        if weights == INT8:
            require_native(self.native, f"{DRAFT_INT8}; ")
            require(dtype is torch.bfloat16, f"{DRAFT_INT8}; that takes bf16, and the target is in {dtype}")
            return CpuDevice(self.native, INT8)
        possible = native_here(self.native) and dtype is torch.bfloat16
        return CpuDevice(self.native, INT8, strict=False) if possible and weights == AUTO else self

    def prepare(self, module: nn.Module) -> str:
        dtype = next(module.parameters()).dtype
        if not packing_available(dtype):
            return f"module path: oneDNN cannot pack {dtype} weights on this CPU"
        replace_norms(module)
        pack(module)
        return "packed path: weights laid out once, projections fused, by oneDNN"

    def decoder(self, model: GraphableModel) -> Decoder | None:
        return decoder_of(model.module, model.capability.windows)

    def free_memory(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class CudaDevice:
    """A CUDA device: the module as it is, attention through the same function, few rows as captured graphs."""

    weights, strict = SAME, False

    def __init__(self, name: str):
        require(torch.cuda.is_available(), f"device {name!r} is not available: torch sees no CUDA device")
        self.torch_device = torch.device(name)
        # cuDNN plans attention anew for every number of keys it has not met, and a text meets one with each token:
        # 30 ms a step on an H200 where the forward took 6. It is switched off for the process, there is no other way.
        torch.backends.cuda.enable_cudnn_sdp(False)

    def fast_dtype(self) -> torch.dtype:
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16

    def native_dtype(self) -> torch.dtype:
        return self.fast_dtype()

    def drafts_elsewhere(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def native_decoder(self, module: nn.Module, windows: dict[int, int | None]) -> NativeDecoder:
        raise NotCovered("native kernels run on the CPU alone")

    def for_drafts(self, weights: str, dtype: torch.dtype) -> "CudaDevice":
        where = f"that takes the native path of a CPU, the device is {self.torch_device}"
        require(weights != INT8, f"{DRAFT_INT8}; {where}")
        return self

    def prepare(self, module: nn.Module) -> str:
        return "module path on CUDA"

    def decoder(self, model: GraphableModel) -> GraphedModel:
        return GraphedModel(model, lambda: CudaGraphs(self.torch_device))

    def free_memory(self) -> int:
        return torch.cuda.mem_get_info(self.torch_device)[0]


def find_device(name: str, native: str | None = None, dtype: str = AUTO) -> Device:
    """The device called `name`: auto, cpu, cuda or cuda:N, with the kernels `native` on a CPU, ready for `dtype`.

    Raises `ConfigError` for a name that is unknown or cannot be had here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    one_of("device", kind, ("auto", "cpu", "cuda"))
    require(not index or (kind == "cuda" and index.isdigit()), f"device is {name!r}; it must be cpu, cuda or cuda:N")
    if kind == "cpu":
        return CpuDevice(native, INT8 if dtype == INT8 else SAME)
    require(dtype != INT8, f"dtype is {INT8!r}; that takes the native path of a CPU, the device is {name}")
    require(native in (None, AUTO, OFF), f"native is {native!r}; on {name} it must be auto or off")
    return CudaDevice(name)


def find_dtype(name: str, device: Device) -> torch.dtype:
    """The dtype called `name`; auto is the one torch is fast in. Raises `ConfigError` for an unknown one."""
    if name == AUTO:
        return device.fast_dtype()
    one_of("dtype", name, (AUTO, *DTYPES))
    return DTYPES[name]


def use_threads(count: int | None) -> None:
    """Run on `count` CPU threads, torch's default when none. Raises `ConfigError` for fewer than one."""
    if count is None:
        return
    if not isinstance(count, int) or not 1 <= count <= 1024:
        raise ConfigError(f"threads is {count!r}; it must be a whole number from 1 to 1024")
    torch.set_num_threads(count)
