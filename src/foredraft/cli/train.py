"""`foredraft train`: teach a drafter to guess what a target writes."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from foredraft.cli.flags import flags_of, given
from foredraft.cli.load_options import loading
from foredraft.cli.method_flags import method_flags, options_for
from foredraft.core.errors import UserError
from foredraft.core.sampling_params import whole
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.evaluation.drafter_report import report_drafter
from foredraft.model.devices import find_device, use_threads
from foredraft.training.data_options import DataOptions
from foredraft.training.distributed import own_device, workers
from foredraft.training.methods.method import Findings
from foredraft.training.on_policy import prompt_of
from foredraft.training.run import Counted, Order, TrainingRun, uncounted
from foredraft.training.run_config import RunConfig
from foredraft.training.trainer import Outcome

DataFlags = flags_of(DataOptions)
RunFlags = flags_of(RunConfig)
MethodFlags = method_flags()
SIGNALLED = 128  # an exit code over it names the signal
MOST_TOKENS = 64  # of a chain
TEXT_PREFIX = 32  # tokens of a prompt cut from a text that is written as a whole


def train(
    method: str,
    /,
    *,
    target: str = "tiny",
    data: Annotated[list[Path], Parameter(consume_multiple=True)],
    output: Path,
    device: str = "auto",
    threads: int | None = None,
    report_prompts: int = 4,
    report_tokens: int = 64,
    reading: Annotated[DataFlags, Parameter(name="*", group="Data")] = DataFlags(),  # noqa: B008
    training: Annotated[RunFlags, Parameter(name="*", group="Training")] = RunFlags(),  # noqa: B008
    options: Annotated[MethodFlags, Parameter(name="*", group="Method")] = MethodFlags(),  # noqa: B008
) -> None:
    """Train a drafter for a target and measure it on held-out prompts.

    The same command goes on where a stopped run left off. Under torchrun every process takes part in each step.

    Args:
        method: eagle1, eagle3, medusa, mtp, dflash or draft.
        target: The model to draft for: a folder, a hub id or an embedded name.
        data: Files of samples, JSON Lines of messages, texts, prompts with completions, or token ids.
        output: Folder of the drafter and of the run; new, empty, or that of the same run.
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads; torch chooses when none are given.
        report_prompts: Held-out prompts on which the finished drafter is timed against plain decoding; 0 leaves it.
        report_tokens: Tokens written after each of them.
    """
    whole("report_prompts", report_prompts, 0)
    whole("report_tokens", report_tokens, 1)
    use_threads(threads)
    order = Order(
        method=method,
        options=options_for(method, given(options)),
        target=target,
        data=tuple(data),
        output=output,
        reading=DataOptions(**given(reading)),
        config=RunConfig(**given(training)),
        device=device,
    )
    with workers(find_device(own_device(device)).torch_device) as everyone:
        run = TrainingRun(order, everyone, counting=counting if everyone.first else uncounted)
        if run.folder.finished:
            print(f"{output} holds this run, finished; give another --output to train again")
            return
        with loading(target):
            run.load()
        run.prepare()
        outcome = run.train(Console(stderr=True))
    if everyone.first:
        on_finished(run, outcome, prompts=report_prompts, tokens=report_tokens)
    if outcome.stopped_by is not None:
        sys.exit(SIGNALLED + outcome.stopped_by)


def on_finished(run: TrainingRun, outcome: Outcome, *, prompts: int, tokens: int) -> None:
    """Say how the run ended; time a finished drafter against plain decoding on held-out prompts."""
    order = run.order
    if outcome.stopped_by is not None:
        print(f"stopped after step {outcome.step} of {run.source.steps}; the same command goes on from there")
        return
    print(f"{order.method} for {order.target}: {outcome.step} steps, written to {order.output}")
    if outcome.findings:
        print(f"held out: {described(outcome.findings)}")
    if run.split.held_out and prompts:
        report(run, [prompt_of(sample, TEXT_PREFIX) for sample in run.split.held_out[:prompts]], tokens)


def report(run: TrainingRun, prompts: list[list[int]], tokens: int) -> None:
    """A table of acceptance and speed; why there is none, where the drafter cannot be run."""
    order, chain = run.order, min(run.method.draft_tokens, MOST_TOKENS)
    drafter = SpeculationConfig(method=run.method.drafter, model=str(order.output), num_speculative_tokens=chain)
    place = own_device(order.device)
    try:
        engine = Engine.from_pretrained(
            order.target, speculation=OFF, dtype=order.dtype_name, device=place, max_batch=1
        )
        report_drafter(engine, drafter, prompts, order.output, max_new_tokens=tokens, rounds=1)
    except UserError as error:
        print(f"no report: {error}")


def described(findings: Findings) -> str:
    shares = " ".join(f"{share:.3f}" for share in findings.agreement)
    return f"loss {findings.loss:.4f}, agreement {shares}, expected tau {findings.expected_tau:.3f}"


@contextmanager
def counting(title: str) -> Iterator[Counted]:
    """A progress bar on standard error."""
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total, tokens: progress.update(task, completed=done, total=total)
