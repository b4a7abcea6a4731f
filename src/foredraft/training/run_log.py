"""What a run says while it trains: a progress bar, one JSON object a line, TensorBoard curves."""

import json
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from foredraft.core.errors import require
from foredraft.core.replaced_file import replace_text
from foredraft.training.methods.method import Findings

Record = dict[str, Any]
QUIET_SECONDS = 20.0  # between lines where there is no terminal to draw a bar on


def record_of(kind: str, step: int, findings: Findings, **more: float) -> Record:
    """What is written of a step, or of a measurement on held-out samples."""
    return {
        "kind": kind,
        "step": step,
        "loss": findings.loss,
        "expected_tau": findings.expected_tau,
        "agreement": list(findings.agreement),
        **findings.scalars,
        **more,
    }


class Sink(Protocol):
    """Takes what happens in a run."""

    def take(self, record: Record) -> None:
        """One step, measurement or remark."""

    def close(self) -> None:
        """Nothing more comes."""


class JsonLines:
    """One JSON object a line."""

    def __init__(self, path: Path, *, after: int):
        """Goes on in `path` after step `after`; what a killed run wrote past it is dropped."""
        kept = [line for line in lines_of(path) if step_of(line) <= after]
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, "".join(kept))
        self.file = path.open("a", encoding="utf-8", buffering=1)

    def take(self, record: Record) -> None:
        self.file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        self.file.close()


def lines_of(path: Path) -> list[str]:
    """The whole lines of a log; a kill may have cut the last one."""
    if not path.exists():
        return []
    return [line for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line.endswith("\n")]


def step_of(line: str) -> int:
    return json.loads(line)["step"]


class Screen:
    """A progress bar, or a line now and then where there is no terminal."""

    def __init__(self, console: Console, *, steps: int, after: int):
        self.console, self.steps, self.said = console, steps, -QUIET_SECONDS
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self.progress = Progress(*columns, console=console, disable=not console.is_terminal)
        self.task = self.progress.add_task("starting", total=steps, completed=after)
        self.progress.start()

    def take(self, record: Record) -> None:
        if record["kind"] == "note":
            self.console.print(record["text"], markup=False, highlight=False, soft_wrap=True)
        elif record["kind"] == "held_out":
            self.console.print(f"step {record['step']}, held out: {described(record)}", highlight=False, soft_wrap=True)
        else:
            self.progress.update(self.task, completed=record["step"], description=described(record))
            self.say_seldom(record)

    def say_seldom(self, record: Record) -> None:
        if not self.console.is_terminal and monotonic() - self.said >= QUIET_SECONDS:
            self.said = monotonic()
            left = record["seconds"] * (self.steps - record["step"])
            line = f"step {record['step']} of {self.steps}: {described(record)}, {left:.0f} s left"
            self.console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self.progress.stop()


def described(record: Record) -> str:
    shares = " ".join(f"{share:.2f}" for share in record["agreement"])
    speed = f", {record['tokens_per_second']:.0f} tokens/s" if "tokens_per_second" in record else ""
    return f"loss {record['loss']:.3f}, agreement {shares}, expected tau {record['expected_tau']:.2f}{speed}"


class Board:
    """Curves for TensorBoard."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter  # an optional package

        self.writer = SummaryWriter(str(folder))

    def take(self, record: Record) -> None:
        curves = {name: value for name, value in record.items() if isinstance(value, float)}
        curves |= {f"agreement/{place}": share for place, share in enumerate(record.get("agreement", ()), start=1)}
        for name, value in curves.items():
            self.writer.add_scalar(f"{record['kind']}/{name}", value, record["step"])

    def close(self) -> None:
        self.writer.close()


def require_tensorboard() -> None:
    """Raise `ConfigError` unless the package is there."""
    missing = "tensorboard is not installed: run `pip install tensorboard`, or leave --tensorboard out"
    require(find_spec("tensorboard") is not None, missing)


class RunLog:
    """Everyone who is told."""

    def __init__(self, sinks: Iterable[Sink] = ()):
        self.sinks = list(sinks)

    def take(self, record: Record) -> None:
        for sink in self.sinks:
            sink.take(record)

    def note(self, step: int, text: str) -> None:
        """A remark in one line."""
        self.take({"kind": "note", "step": step, "text": text})

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()
