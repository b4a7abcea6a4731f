"""A whole training run: from files and a target to a drafter in a folder."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from foredraft.core.errors import require
from foredraft.core.speculation_config import OFF
from foredraft.engine.engine import Engine
from foredraft.model.devices import find_device, find_dtype
from foredraft.training.batches import BatchPlan, BatchSource, StateSource
from foredraft.training.data_options import DataOptions
from foredraft.training.distributed import Workers, own_device
from foredraft.training.feature_cache import FeatureCache, OnTheFly
from foredraft.training.methods.method import Method, Setting, make_method
from foredraft.training.on_policy import regenerate
from foredraft.training.provenance import data_hashes, provenance
from foredraft.training.read_samples import read_samples
from foredraft.training.run_config import FREE, RunConfig
from foredraft.training.run_folder import RunFolder
from foredraft.training.run_log import Board, JsonLines, RunLog, Screen, require_tensorboard
from foredraft.training.samples import DataError, Sample, Split
from foredraft.training.target_network import TargetNetwork
from foredraft.training.trainer import Outcome, Trainer

Counted = Callable[[int, int, int], None]  # done, of how many, tokens so far
PLACES = ("answers", "feature_cache")  # options that say where something is kept, not what it is
Counting = Callable[[str], AbstractContextManager[Counted | None]]


@contextmanager
def uncounted(title: str) -> Iterator[None]:
    yield None


@dataclass(frozen=True, kw_only=True)
class Order:
    """What is to be trained.

    Attributes:
        method: Name of the training method.
        options: The method's own.
        target: A folder, a hub id or an embedded name.
        data: Files of samples.
        output: Folder of the run.
        reading: How the data is read.
        config: How the drafter is trained.
        device: auto, cpu, cuda or cuda:N.
    """

    method: str
    options: Any
    target: str
    data: tuple[Path, ...]
    output: Path
    reading: DataOptions = field(default_factory=DataOptions)
    config: RunConfig = field(default_factory=RunConfig)
    device: str = "auto"

    @cached_property
    def dtype(self) -> torch.dtype:
        """What products are computed in, and the target runs in. Raises `ConfigError` for an absent device."""
        found = find_dtype(self.config.train_dtype, find_device(own_device(self.device)))
        return torch.bfloat16 if found == torch.float16 else found  # gradients leave the range of fp16

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What the weights are a function of. Raises `DataError` for a file that cannot be read."""
        for path in self.data:
            require(path.is_file(), f"cannot read {str(path)!r}: no such file", DataError)
        reading, config = asdict(self.reading), asdict(self.config)
        return {
            "method": self.method,
            "options": asdict(self.options),
            "target": self.target,
            "data": data_hashes(self.data),
            "reading": {name: value for name, value in reading.items() if name not in PLACES},
            "training": {name: value for name, value in config.items() if name not in FREE},
            "dtype": self.dtype_name,
        }


class TrainingRun:
    """One run of an order, from reading to the written drafter.

    Attributes:
        folder: Where it lives.
        target: Loaded by `load`.
        split, method, source: Made by `prepare`.
    """

    target: TargetNetwork
    split: Split
    method: Method
    source: BatchSource

    def __init__(self, order: Order, workers: Workers, *, counting: Counting = uncounted):
        """`counting` shows how far preparations are. Raises `ConfigError` where the output holds something else."""
        self.order, self.workers, self.counting = order, workers, counting
        if order.config.tensorboard:
            require_tensorboard()
        self.folder = RunFolder(order.output)
        self.folder.require_fitting(order.identity)
        workers.wait()  # nobody looks into the folder after the first began to fill it
        if workers.first:
            self.folder.begin(order.identity)

    def load(self) -> None:
        """Load the target. Raises `ModelError`."""
        order = self.order
        self.target = TargetNetwork.load(order.target, dtype=order.dtype_name, device=own_device(order.device))

    def prepare(self) -> None:
        """Read the samples, make the method, fill the cache of hidden states. Raises `UserError` kinds."""
        order, config = self.order, self.order.config
        self.split = Split.of(self.samples(), config.held_out)
        require(bool(self.split.training), f"held_out {config.held_out} leaves nothing to train on", DataError)
        setting = Setting(
            target=self.target, samples=self.split.training, seed=config.seed, recompute=config.recompute_logits
        )
        self.method = make_method(order.method, order.options, setting)
        self.source = self.batches()

    def samples(self) -> list[Sample]:
        """What the files hold, answered by the target where it was asked for."""
        order, reading = self.order, self.order.reading
        report = read_samples(
            order.data,
            self.target.tokenizer,
            max_length=min(reading.max_length, self.target.capability.context_length),
            too_long=reading.too_long,
            bad_lines=reading.bad_lines,
            vocabulary=self.target.vocabulary,
        )
        self.counts = asdict(report.counts)
        if not reading.regenerate:
            return report.samples
        for turn in (0, 1):  # the first process writes the answers, then the others read them
            if turn == min(self.workers.rank, 1):
                answers = self.answered(report.samples)
            self.workers.wait()
        return answers

    def answered(self, samples: list[Sample]) -> list[Sample]:
        order, reading = self.order, self.order.reading
        path = reading.answers or self.folder.inner / "answers.jsonl"
        place = own_device(order.device)
        engine = Engine.from_pretrained(order.target, speculation=OFF, dtype=order.dtype_name, device=place)
        with self.counting("the target answers") as progress:
            answers = regenerate(engine, samples, path, **reading.answering, progress=progress)
        self.counts |= {"answers_reused": answers.reused, "answers_left_out": answers.left_out}
        longest = min(reading.max_length, self.target.capability.context_length)
        return [shortened(sample, longest) for sample in answers.samples if any(sample.written[1:longest])]

    def batches(self) -> BatchSource:
        config, workers, split = self.order.config, self.workers, self.split
        plan = BatchPlan(
            lengths=[len(sample) for sample in split.training],
            seed=config.seed,
            batch_size=config.batch_size,
            batch_tokens=config.batch_tokens,
            rank=workers.rank,
            world=workers.size,
            accumulation=config.accumulation,
        )
        steps = config.steps or plan.steps_of(config.epochs)
        states, place = self.states(), self.target.device
        return BatchSource(
            split.training, split.held_out, plan, states, steps=steps, dtype=self.order.dtype, device=place
        )

    def states(self) -> StateSource:
        """Where the target's states come from; a cache is filled before the first step."""
        computed = OnTheFly(self.target, self.method.boundaries)
        folder = self.order.reading.feature_cache
        if folder is None:
            return computed
        own = [*self.split.training, *self.split.held_out][self.workers.rank :: self.workers.size]
        with self.counting("the target's hidden states") as progress:
            FeatureCache(folder, computed, dtype=self.order.dtype).fill(own, progress)
        self.workers.wait()
        return FeatureCache(folder, computed, dtype=self.order.dtype)

    def train(self, console: Console) -> Outcome:
        """Train, and write the drafter when it is done. Raises `UserError` kinds."""
        trainer = Trainer(
            method=self.method,
            source=self.source,
            config=self.order.config,
            checkpoints=self.folder.checkpoints,
            dtype=self.order.dtype,
            workers=self.workers,
        )
        trainer.resume()
        trainer.log = self.log(console, trainer.step)
        try:
            outcome = trainer.run()
        finally:
            trainer.log.close()
        if outcome.stopped_by is None and self.workers.first:
            self.finish(outcome)
        self.workers.wait()
        return outcome

    def log(self, console: Console, after: int) -> RunLog:
        """The first process tells everyone; the others nobody."""
        if not self.workers.first:
            return RunLog()
        board = [Board(self.folder.inner / "tensorboard")] if self.order.config.tensorboard else []
        lines = JsonLines(self.folder.inner / "log.jsonl", after=after)
        return RunLog([lines, *board, Screen(console, steps=self.source.steps, after=after)])

    def finish(self, outcome: Outcome) -> None:
        findings, shown = outcome.findings, None
        if findings:
            self.method.measured(findings)
            shown = asdict(findings) | {"expected_tau": findings.expected_tau}
        facts = provenance(
            self.order.data,
            order=self.order.identity,
            target={"name": self.order.target, "fingerprint": self.target.fingerprint},
            samples={"training": len(self.split.training), "held_out": len(self.split.held_out), **self.counts},
            processes=self.workers.size,
            device=str(self.target.device),
            steps=outcome.step,
            held_out=shown,
        )
        self.folder.finish(self.method, self.order.target, facts)


def shortened(sample: Sample, length: int) -> Sample:
    return Sample(sample.tokens[:length], sample.written[:length], sample.source)
