"""The processes of a run: one alone, or those torchrun started, which add up what each of them found."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True, slots=True)
class Workers:
    """Which of how many processes this one is.

    Attributes:
        rank: From 0; the first alone writes files.
        size: How many.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum of everyone's `values`, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def sum_gradients(self, module: nn.Module) -> None:
        """Give every parameter the sum of everyone's gradients, in one exchange."""
        if self.size == 1:
            return
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for parameter in trained:  # every process sends the same parts, read by its batch or not
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = self.sum(torch.cat([parameter.grad.flatten() for parameter in trained]))
        for parameter, part in zip(trained, flat.split([p.numel() for p in trained]), strict=True):
            parameter.grad.copy_(part.view_as(parameter))

    def wait(self) -> None:
        """Until everyone is here."""
        if self.size > 1:
            distributed.barrier()


@contextmanager
def workers(device: torch.device) -> Iterator[Workers]:
    """The processes of this run: those of torchrun's environment, or this one alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Workers()
        return
    distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Workers(distributed.get_rank(), size)
    finally:
        distributed.destroy_process_group()


def own_device(name: str) -> str:
    """The device this process takes of those called `name`: under torchrun every process has a GPU of its own."""
    local = os.environ.get("LOCAL_RANK")
    several = local is not None and torch.cuda.is_available() and name in ("auto", "cuda")
    return f"cuda:{local}" if several else name
