"""The native extension, where it is installed: which kernels it may use here, its threads, its programs.

Everything the rest of the house knows of `foredraft_native` stands in this file.
"""

import atexit
import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from foredraft.core.errors import ConfigError, require

EXTENSION, DISTRIBUTION = "foredraft_native", "foredraft-native"
INTERFACE = 8  # of the extension, as this version of foredraft calls it
VARIABLE = "FOREDRAFT_NATIVE"
AUTO, OFF = "auto", "off"
BF16_ONLY = "-bf16"  # ends the names of kernel sets that compute in nothing else
DTYPES = {torch.bfloat16: "bf16", torch.float32: "fp32"}


class NotCovered(Exception):
    """Why the native path cannot run a model, in half a line; another path runs it."""


class Runtime(Protocol):
    """Makes programs and caches; the tests have one in plain torch.

    Attributes:
        kernels: Name of the kernel set.
        threads: Threads that its programs share.
    """

    kernels: str
    threads: int

    def program(self, dtype: str) -> Any:
        """An empty program over activations, weights and cache of `dtype`, bf16 or fp32."""

    def cache(self, keys: list[Tensor], values: list[Tensor]) -> Any:
        """The handle of storage, keys and values by layer, [slots, heads, size] each."""


@dataclass(frozen=True, slots=True)
class NativeRuntime:
    """The extension with one set of kernels and a pool of threads."""

    kernels: str
    threads: int

    def program(self, dtype: str) -> Any:
        return extension().Program(dtype, self.kernels, thread_pool(self.threads))

    def cache(self, keys: list[Tensor], values: list[Tensor]) -> Any:
        return extension().Cache(keys, values)


def native_choice(asked: str | None) -> str:
    """Which kernels to use: as `asked`, else as the environment says, else auto.

    Raises `ConfigError` for a name that is unknown or cannot be had here.
    """
    choice, source = (asked, "native") if asked is not None else (os.environ.get(VARIABLE) or AUTO, VARIABLE)
    available = (AUTO, OFF, *kernel_names())
    missing = f"; {absence()}" if absence() else ""
    require(choice in available, f"{source} is {choice!r}; it must be {one_of(available)}{missing}", ConfigError)
    return choice


def native_here(choice: str) -> bool:
    """Whether a checked `choice` leaves a native path."""
    return installed() and choice != OFF


def require_native(choice: str, purpose: str) -> None:
    """Raise `ConfigError` that begins with `purpose` where a checked `choice` leaves no native path."""
    reason = absence() or "native kernels are switched off"
    require(native_here(choice), f"{purpose}that takes the native path, and {reason}")


def runtime_for(choice: str, dtype: torch.dtype) -> NativeRuntime:
    """The runtime of a checked `choice` for a model of `dtype`. Raises `NotCovered` where there is none.

    Kernels that compute in bf16 alone leave fp32 to the best that do not.
    """
    if choice == OFF:
        raise NotCovered("native kernels are switched off")
    if absence():
        raise NotCovered(absence())
    if dtype not in DTYPES:
        raise NotCovered(f"native kernels compute in bf16 or fp32, not in {str(dtype).removeprefix('torch.')}")
    fitting = [name for name in kernel_names() if dtype is torch.bfloat16 or not name.endswith(BF16_ONLY)]
    if not fitting:
        raise NotCovered("no native kernels run on this CPU")
    return NativeRuntime(choice if choice in fitting else fitting[0], torch.get_num_threads())


def kernel_names() -> list[str]:
    """Kernel sets that run here, best first; none without the extension."""
    return list(extension().kernel_names()) if installed() else []


def installed() -> bool:
    """Whether there is an extension to use."""
    return not absence()


@cache
def absence() -> str:
    """Why there is no extension to use, in half a line; empty where there is one."""
    if find_spec(EXTENSION) is None:
        return f"{DISTRIBUTION} is not installed"
    if getattr(extension(), "INTERFACE", 1) != INTERFACE:
        return f"{DISTRIBUTION} {extension_version()} is of another version of foredraft: install it anew"
    return ""


@cache
def extension() -> ModuleType:
    return import_module(EXTENSION)


def helpers() -> ModuleType | None:
    """The extension for what is no forward: noise, choice, suffix trees; none where it is off or not installed."""
    off = os.environ.get(VARIABLE) == OFF
    return None if off or not installed() else extension()


@cache
def thread_pool(threads: int) -> Any:
    """The pool that all programs of the process with so many threads share; it goes when the process ends."""
    atexit.register(thread_pool.cache_clear)
    return extension().Threads(threads)


def extension_version() -> str:
    """Of the installed distribution; empty where the extension was put there by other means."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return ""


def one_of(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
