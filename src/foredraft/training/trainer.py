"""One trainer for every method: steps, states saved and resumed, measurements, the finished drafter."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Protocol

import torch

from foredraft.core.errors import UserError, require
from foredraft.sampling.noise import mixed_int
from foredraft.training.batches import Batch
from foredraft.training.checkpointing import Checkpoints
from foredraft.training.distributed import Workers
from foredraft.training.methods.method import Findings, Method
from foredraft.training.optimizer import Optimizers, Schedule
from foredraft.training.run_config import RunConfig
from foredraft.training.run_log import RunLog, record_of
from foredraft.training.stop_request import StopRequest, stop_requests
from foredraft.training.tally import Tally


class Source(Protocol):
    """Where batches come from: a function of the seed and the step alone.

    Attributes:
        steps: Of the whole run.
    """

    steps: int

    def step(self, step: int) -> Iterator[Batch]:
        """This process's micro-batches of a step; at least one, be it empty of rows that teach."""

    def held_out(self) -> Iterator[Batch]:
        """This process's part of the held-out samples; nothing where none are kept back."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended.

    Attributes:
        step: Steps taken in all.
        findings: What the held-out samples showed at the end; none where the run was stopped or nothing is held out.
        stopped_by: The signal that stopped it; none where it finished.
    """

    step: int
    findings: Findings | None = None
    stopped_by: int | None = None


@dataclass(kw_only=True)
class Trainer:
    """Trains a method's network on a source of batches.

    Attributes:
        method, source, config, checkpoints, log, workers: What it works with.
        dtype: What products are computed in; weights stay in fp32.
        step: Steps taken.
    """

    method: Method
    source: Source
    config: RunConfig
    checkpoints: Checkpoints
    dtype: torch.dtype = torch.float32
    log: RunLog = field(default_factory=RunLog)
    workers: Workers = field(default_factory=Workers)
    step: int = 0

    def __post_init__(self) -> None:
        self.module = self.method.module
        self.device = next(self.module.parameters()).device
        self.optimizers = Optimizers(self.module, self.config.optimizer, weight_decay=self.config.weight_decay)
        rate = self.config.learning_rate or self.method.learning_rate
        self.schedule = Schedule(peak=rate, steps=self.source.steps, warmup=self.config.warmup)
        self.saved, self.saved_at = -1, monotonic()

    def resume(self) -> None:
        """Go on from the newest state, where there is one. Raises `ConfigError` where it cannot be read."""
        state = self.checkpoints.load(self.device)
        if state is None:
            return
        self.module.load_state_dict(state["module"])
        self.optimizers.load(state["optimizers"])
        self.step = self.saved = state["step"]

    def run(self) -> Outcome:
        """Train to the last step, or until a signal asks to stop.

        Raises `UserError` where the loss is no longer a number.
        """
        with stop_requests() as request:
            while self.step < self.source.steps:
                told_to_stop, due = self.take_step(request)
                if due or told_to_stop or self.step == self.source.steps:
                    self.save()
                if told_to_stop and self.step < self.source.steps:
                    return Outcome(self.step, stopped_by=request.signal)
                every = self.config.evaluate_steps
                if every and self.step % every == 0 and self.step < self.source.steps:
                    self.evaluate()
        return Outcome(self.step, self.evaluate())

    def take_step(self, request: StopRequest) -> tuple[bool, bool]:
        """One optimizer step; returns whether any process was told to stop, and whether a state is due."""
        start, tally = monotonic(), Tally()
        self.module.train()
        torch.manual_seed(mixed_int(mixed_int(self.config.seed) + self.step) >> 1)  # for a network that drops out
        for batch in self.source.step(self.step):
            with self.precision():
                losses = self.method.loss(batch, self.step)
            losses.total.backward()
            tally.add(losses, tokens=int(batch.lengths.sum()), stop=0, due=0)
        tally.parts["stop"] += request.signal is not None
        tally.parts["due"] += self.due()
        tally.sum_over(self.workers)
        self.update(tally, start)
        return tally["stop"] > 0, tally["due"] > 0

    def update(self, tally: Tally, start: float) -> None:
        """Move the weights by the gradients of all processes, divided by what all of them taught."""
        findings = tally.findings()
        lost = f"the loss of step {self.step + 1} is {findings.loss}; lower --learning-rate or use --train-dtype fp32"
        require(math.isfinite(findings.loss), lost, UserError)
        self.workers.sum_gradients(self.module)
        rate = self.schedule.at(self.step)
        norm = self.optimizers.step(rate, divisor=max(tally["weight"], 1.0), clip=self.config.clip)
        self.step += 1
        seconds = monotonic() - start
        speed = {"seconds": seconds, "tokens_per_second": tally["tokens"] / seconds}
        self.log.take(record_of("step", self.step, findings, learning_rate=rate, gradient_norm=norm, **speed))

    def due(self) -> bool:
        """Whether the state after the step under way is to be saved, as the first process sees it."""
        every = self.config.save_steps
        by_step = every and (self.step + 1) % every == 0
        return bool(by_step) or monotonic() - self.saved_at >= 60 * self.config.save_minutes

    def save(self) -> None:
        """Save the state unless it is saved already; a disk that refuses is remarked and training goes on."""
        if self.workers.first and self.saved != self.step:
            state = {"module": self.module.state_dict(), "optimizers": self.optimizers.state()}
            refusal = self.checkpoints.save(self.step, state)
            if refusal:
                self.log.note(self.step, refusal)
        self.saved, self.saved_at = self.step, monotonic()

    def evaluate(self) -> Findings | None:
        """What the held-out samples show now; none where there are none."""
        tally = Tally()
        self.module.eval()
        with torch.no_grad(), self.precision():
            for batch in self.source.held_out():
                tally.add(self.method.loss(batch, 0))
        if not tally.parts:
            return None
        tally.sum_over(self.workers)
        findings = tally.findings()
        self.log.take(record_of("held_out", self.step, findings))
        return findings

    def precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
