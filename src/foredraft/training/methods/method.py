"""The protocol every training method speaks, and the registry that finds one by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from foredraft.core.errors import require
from foredraft.core.speculation_config import unknown
from foredraft.training.batches import Batch
from foredraft.training.samples import Sample
from foredraft.training.target_network import TargetNetwork


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLosses:
    """What a batch says, in sums, so that batches and ranks add up.

    Attributes:
        total: Loss of all rows together, with its gradient.
        weight: What `total` and `scalars` are divided by once all parts of the step are added: rows that taught.
        correct: Rows whose likeliest token was the target's, by draft position, [P].
        counted: Rows judged, by draft position, [P].
        scalars: Further sums, by name.
        ranks: Rows by the rank the drafter gave the target's likeliest token, [P, ranks]; none where nobody asked.
    """

    total: Tensor
    weight: Tensor
    correct: Tensor
    counted: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)
    ranks: Tensor | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What the rows of a step, or of all held-out samples, showed.

    Attributes:
        loss: Per row.
        agreement: Share of rows whose likeliest token was the target's, by draft position.
        scalars: Further means, by name.
        rank_shares: Share of rows where the target's likeliest token had that rank, [positions][ranks].
    """

    loss: float
    agreement: tuple[float, ...]
    scalars: dict[str, float] = field(default_factory=dict)
    rank_shares: tuple[tuple[float, ...], ...] = ()

    @property
    def expected_tau(self) -> float:
        """Tokens a target forward commits if every position agrees this often given that those before it did."""
        product, total = 1.0, 1.0
        for share in self.agreement:
            product *= share
            total += product
        return total


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a method is made from beside its own options.

    Attributes:
        target: The model whose law is learnt.
        samples: Of the training split, from which a draft vocabulary is chosen.
        seed: Of all randomness.
        recompute: Compute logits again in the backward pass instead of keeping them.
    """

    target: TargetNetwork
    samples: list[Sample]
    seed: int
    recompute: bool = False


class Method(Protocol):
    """Trains one drafter network.

    Attributes:
        name: As registered.
        module: The network; parameters that require gradients are trained.
        boundaries: Hidden states of the target it reads, side by side, as `Batch.features`.
        draft_tokens: Tokens the drafter is meant to guess in a row.
        drafter: The drafting method that loads what is written.
        learning_rate: What suits it where nobody says otherwise.
    """

    name: str
    module: nn.Module
    boundaries: tuple[int, ...]
    draft_tokens: int
    drafter: str
    learning_rate: float

    def loss(self, batch: Batch, step: int) -> StepLosses:
        """What `batch` says; randomness is a function of the seed, `step` and the text alone."""

    def measured(self, findings: Findings) -> None:
        """Keep what the held-out samples showed, where the head stores it."""

    def write(self, folder: Path, target_name: str) -> None:
        """Write the drafter so that it can be loaded from `folder`."""


Maker = Callable[[Any, Setting], Method]


@dataclass(frozen=True, slots=True)
class Entry:
    """A method's options, and what makes it of them."""

    options: type
    make: Maker


registry: dict[str, Entry] = {}


def register(name: str, options: type) -> Callable[[Maker], Maker]:
    """Make a method known under `name`; the decorated callable takes its `options` and the setting."""

    def remember(maker: Maker) -> Maker:
        registry[name] = Entry(options, maker)
        return maker

    return remember


BUILT_IN = ("eagle1", "eagle3", "medusa", "mtp", "dflash", "draft")  # each registers itself in the module of its name


def find_method(name: str) -> Entry:
    """The method called `name`. Raises `ConfigError` for an unknown one."""
    if name in BUILT_IN:
        import_module(f"foredraft.training.methods.{name}")
    require(name in registry, unknown("training method", name, {*BUILT_IN, *registry}))
    return registry[name]


def make_method(name: str, options: Any, setting: Setting) -> Method:
    """A method with new weights, the same for the same seed. Raises `ConfigError` and other `UserError` kinds."""
    torch.manual_seed(setting.seed)
    return find_method(name).make(options, setting)


def counts(values: list[Tensor]) -> Tensor:
    """Counts [P] that add up exactly."""
    return torch.stack([value.detach().to(torch.float64) for value in values])
