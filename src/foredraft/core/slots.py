"""Cache slots as plans and attention read them."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

Slots = slice | Tensor  # a run of cache slots as a slice, or any slots as int64 indices


def compact(slots: list[int], device: torch.device) -> Slots:
    """A slice where the slots, at least one, are one ascending run, else int64 indices."""
    return slice(slots[0], slots[0] + len(slots)) if is_run(slots) else integers(slots, device)


def is_run(slots: list[int]) -> bool:
    """Whether slots are one ascending run."""
    count = len(slots)
    if count < 2:
        return True
    first = slots[0]
    return slots[-1] - first == count - 1 and slots == list(range(first, first + count))


def indices(slots: Slots, device: torch.device) -> Tensor:
    """int64 [N]."""
    return integers(np.arange(slots.start, slots.stop), device) if isinstance(slots, slice) else slots.to(device)


def integers(numbers: Sequence[int] | np.ndarray, device: torch.device) -> Tensor:
    """int64 [N]; by way of numpy, which reads a list in a fraction of the time."""
    return torch.from_numpy(np.asarray(numbers, dtype=np.int64)).to(device)
