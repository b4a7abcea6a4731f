"""Graphs without a GPU: work is recorded call by call and replayed on the same tensors, as captured graphs are."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
NOT_CAPTURED = {aten._local_scalar_dense, aten.nonzero, aten.lift_fresh, aten.is_nonzero}


class Recorder(TorchDispatchMode):
    """Notes every call; raises for what waits for the device or brings numbers from the host, which no graph holds."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket in NOT_CAPTURED:
            raise RuntimeError(f"{func} cannot be captured")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, tensors(out)))
        return out


class RecordedGraphs:
    """Captures and replays on a CPU; `captures` counts."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        with Recorder() as recorder:
            work()
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            for func, args, kwargs, kept in recorder.calls:
                for old, new in zip(kept, tensors(func(*args, **kwargs)), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)

        return replay

    def load(self, buffer: Tensor, numbers: np.ndarray) -> None:
        buffer.copy_(torch.from_numpy(numbers.copy()))


def tensors(out) -> list[Tensor]:
    return [part for part in (out if isinstance(out, tuple | list) else [out]) if isinstance(part, Tensor)]
