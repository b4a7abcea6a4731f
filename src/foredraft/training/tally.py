"""Sums over micro-batches and processes, and what they show."""

import torch
from torch import Tensor

from foredraft.training.distributed import Workers
from foredraft.training.methods.method import Findings, StepLosses


class Tally:
    """Adds up the losses of micro-batches, then those of all processes.

    Attributes:
        parts: Sums by name, in fp64; the same names and shapes in every process.
    """

    def __init__(self):
        self.parts: dict[str, Tensor] = {}

    def add(self, losses: StepLosses, **further: float) -> None:
        """Add a batch's sums, and `further` numbers."""
        own = {"total": losses.total.detach(), "weight": losses.weight, "correct": losses.correct}
        own |= {"counted": losses.counted, **{f"scalar {name}": value for name, value in losses.scalars.items()}}
        own |= {"ranks": losses.ranks} if losses.ranks is not None else {}
        own |= {name: torch.tensor(value) for name, value in further.items()}
        for name, value in own.items():
            value = value.to(torch.float64).cpu()
            self.parts[name] = self.parts[name] + value if name in self.parts else value

    def sum_over(self, workers: Workers) -> None:
        """Make the sums those of all processes, in one exchange."""
        flat = workers.sum(torch.cat([part.flatten() for part in self.parts.values()]))
        sizes = [part.numel() for part in self.parts.values()]
        for (name, part), own in zip(self.parts.items(), flat.split(sizes), strict=True):
            self.parts[name] = own.view_as(part)

    def __getitem__(self, name: str) -> float:
        return float(self.parts[name])

    def findings(self) -> Findings:
        weight, counted = self.parts["weight"].clamp(min=1), self.parts["counted"].clamp(min=1)
        scalars = {name.removeprefix("scalar "): part for name, part in self.parts.items() if "scalar " in name}
        ranks = self.parts["ranks"] / counted[:, None] if "ranks" in self.parts else torch.zeros(0, 0)
        return Findings(
            loss=float(self.parts["total"] / weight),
            agreement=tuple((self.parts["correct"] / counted).tolist()),
            scalars={name: float(part / weight) for name, part in scalars.items()},
            rank_shares=tuple(tuple(row) for row in ranks.tolist()),
        )
