"""Which samples a step sees, and what they look like to the network.

Shapes: B texts of T tokens, padded on the right; n boundaries; H hidden of the target.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import floor
from typing import Protocol, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.sampling.noise import mixed_int
from foredraft.training.samples import Sample

BATCHES_SORTED = 32  # samples of this many batches are sorted by length before they are cut into batches
Item = TypeVar("Item")
States = tuple[Tensor, Tensor]  # of one text: features [T, n H], final [T, H]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Texts with the target's states.

    Attributes:
        tokens: [B, T] int64, padded with 0.
        written: Tokens the assistant wrote, [B, T]; False in padding.
        lengths: [B] int64.
        features: The target's hidden states at the method's boundaries, side by side, [B, T, n H].
        final: Those after its last norm, [B, T, H].
    """

    tokens: Tensor
    written: Tensor
    lengths: Tensor
    features: Tensor
    final: Tensor


class StateSource(Protocol):
    """Where the target's states come from."""

    def states(self, samples: Sequence[Sample]) -> list[States]:
        """States of each sample."""


def make_batch(
    samples: Sequence[Sample],
    states: Sequence[States],
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> Batch:
    """Samples and their states, padded; states in `dtype`."""
    features, final = (padded([each[part].to(dtype) for each in states]).to(device) for part in (0, 1))
    return Batch(
        tokens=padded([torch.tensor(sample.tokens, dtype=torch.int64) for sample in samples]).to(device),
        written=padded([torch.tensor(sample.written, dtype=torch.bool) for sample in samples]).to(device),
        lengths=torch.tensor([len(sample) for sample in samples], device=device),
        features=features,
        final=final,
    )


def padded(rows: list[Tensor]) -> Tensor:
    return pad_sequence(rows, batch_first=True)


class BatchPlan:
    """Which samples each step sees: a function of the seed and the step, the same for any number of processes."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        seed: int,
        batch_size: int = 8,
        batch_tokens: int | None = None,
        rank: int = 0,
        world: int = 1,
        accumulation: int = 1,
    ):
        """
        Args:
            lengths: Of the samples.
            seed: Of the order.
            batch_size: Samples of a step, all processes together.
            batch_tokens: Tokens of a step, padding included, in place of `batch_size`.
            rank, world: Which of how many processes asks.
            accumulation: Micro-batches a process splits its part of a step into.

        Raises `ConfigError` where there are no samples or one does not fit a step.
        """
        whole("batch_size", batch_size, 1)
        whole("accumulation", accumulation, 1)
        require(len(lengths) > 0, "there are no samples to train on")
        self.lengths, self.seed, self.batch_size, self.batch_tokens = lengths, seed, batch_size, batch_tokens
        self.rank, self.world, self.accumulation = rank, world, accumulation
        if batch_tokens is not None:
            whole("batch_tokens", batch_tokens, 1)
            longest = max(lengths)
            require(batch_tokens >= longest, f"batch_tokens is {batch_tokens}; the longest sample has {longest} tokens")
        self.starts = [0]  # step at which each epoch known so far begins
        self.newest: tuple[int, list[list[int]]] | None = None  # the epoch in use

    def __len__(self) -> int:
        """Steps of the first epoch; with `batch_tokens` others may have a few more or less."""
        return len(self.epoch(0))

    def steps_of(self, epochs: float) -> int:
        """Steps of so many epochs, at least one."""
        last = floor(epochs)
        begins = self.start(last)
        part = epochs - last
        return max(1, begins + round(part * len(self.epoch(last)) if part else 0))

    def steps_from(self, step: int) -> Iterator[list[int]]:
        """Samples of step `step` and all after it, without end; ascending lengths within a step."""
        for later in count(step):
            yield self.step(later)

    def step(self, step: int) -> list[int]:
        """Samples of a step, those of all processes, by ascending length."""
        while self.starts[-1] <= step:
            self.start(len(self.starts))
        epoch = bisect_right(self.starts, step) - 1
        return self.epoch(epoch)[step - self.starts[epoch]]

    def own(self, step: int) -> list[list[int]]:
        """This process's micro-batches of a step; none where there are more processes than samples."""
        own = self.step(step)[self.rank :: self.world]  # of like lengths in every process
        size = max(1, -(-len(own) // self.accumulation))
        return [own[first : first + size] for first in range(0, len(own), size)]

    def start(self, epoch: int) -> int:
        """The step at which an epoch begins."""
        while len(self.starts) <= epoch:
            self.starts.append(self.starts[-1] + len(self.epoch(len(self.starts) - 1)))
        return self.starts[epoch]

    def epoch(self, epoch: int) -> list[list[int]]:
        """The steps of an epoch: every sample once."""
        if self.newest is None or self.newest[0] != epoch:
            self.newest = epoch, self.shuffled(epoch)
        return self.newest[1]

    def shuffled(self, epoch: int) -> list[list[int]]:
        """Samples shuffled, those of `BATCHES_SORTED` batches sorted by length, cut into batches, batches shuffled."""
        generator = torch.Generator().manual_seed(mixed_int(mixed_int(self.seed) + epoch) >> 1)
        order = torch.randperm(len(self.lengths), generator=generator).tolist()
        steps: list[list[int]] = []
        for near in pieces(order, BATCHES_SORTED * self.usual_size):
            steps += self.cut(sorted(near, key=self.lengths.__getitem__))
        return [steps[place] for place in torch.randperm(len(steps), generator=generator).tolist()]

    @property
    def usual_size(self) -> int:
        """Samples of a step, on average."""
        if self.batch_tokens is None:
            return self.batch_size
        return max(1, self.batch_tokens * len(self.lengths) // sum(self.lengths))

    def cut(self, samples: list[int]) -> list[list[int]]:
        """Batches of samples of ascending length."""
        if self.batch_tokens is None:
            return pieces(samples, self.batch_size)
        return [list(batch) for batch in within_tokens(samples, self.lengths.__getitem__, self.batch_tokens)]


def pieces(items: list, size: int) -> list[list]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def within_tokens(items: Iterable[Item], length: Callable[[Item], int], most: int) -> Iterator[list[Item]]:
    """Neighbours that padded to their longest hold at most `most` tokens; an item that is longer stands alone."""
    batch: list[Item] = []
    longest = 0
    for item in items:
        longest = max(longest, length(item))
        if batch and (len(batch) + 1) * longest > most:
            yield batch
            batch, longest = [], length(item)
        batch.append(item)
    if batch:
        yield batch


class BatchSource:
    """Batches of a run: samples by plan, states by source, the held-out samples beside them."""

    def __init__(
        self,
        samples: Sequence[Sample],
        held_out: Sequence[Sample],
        plan: BatchPlan,
        states: StateSource,
        *,
        steps: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        """`plan` is over `samples`; `steps` are those of the whole run; states come in `dtype`."""
        assert len(plan.lengths) == len(samples)
        self.samples, self.plan, self.source, self.steps = samples, plan, states, steps
        self.kept_back = sorted(held_out, key=len)
        self.dtype, self.device = dtype, device

    def step(self, step: int) -> Iterator[Batch]:
        """This process's micro-batches of a step; one that teaches nothing where it has no samples."""
        parts = [[self.samples[index] for index in part] for part in self.plan.own(step)]
        for part in parts or [[silent(self.samples[self.plan.step(step)[0]])]]:
            yield self.batch(part)

    def held_out(self) -> Iterator[Batch]:
        """This process's part of the held-out samples, one that teaches nothing where it has none of them."""
        if not self.kept_back:
            return
        plan = self.plan
        own = self.kept_back[plan.rank :: plan.world] or [silent(self.kept_back[0])]
        size = max(1, plan.batch_size // (plan.world * plan.accumulation))
        for part in pieces(own, size):
            yield self.batch(part)

    def batch(self, samples: list[Sample]) -> Batch:
        return make_batch(samples, self.source.states(samples), dtype=self.dtype, device=self.device)


def silent(sample: Sample) -> Sample:
    """The sample with nothing written in it: a process without samples of its own takes part in every exchange."""
    return Sample(sample.tokens, [False] * len(sample), sample.source)
