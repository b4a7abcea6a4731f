"""Milliseconds of a forward by rows: foredraft's native path beside its module path, transformers and its peers.

    python benchmarks/forward.py -o docs/results/forward-cpu.json --llama-python PYTHON --openvino-python PYTHON

A cell is a shape of a Llama with random weights, a context that the cache holds, and a number of rows: tokens that one
forward computes behind it, logits of all of them wanted. Every contestant is a process of its own over the same weights
in bf16 and on the same threads; it works while it is asked, and the record shows that the others rest meanwhile. They
take turns cell by cell over several rounds, a different one first each time. What memory gives is measured in every
round: the faster of two ways to read a buffer. After the cells everybody writes texts, one token a forward.

The native path takes part a second time with int8 weights: for itself, the verdicts are of bf16.

llama.cpp computes the rows as one batch of its `llama_decode`. OpenVINO GenAI writes one token a forward, so its rows
are computed by OpenVINO itself, on the same stateful model.

Everybody's logits are compared with those of the weights in fp32; who computes something else is left out. Three
verdicts: the native path's share of the bandwidth, what 32 rows cost it, and its plain decoding beside that of OpenVINO
GenAI.
"""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

from command_line import run_command
from cyclopts import App, Parameter
from drafters import names_in, refuse_named
from forward_contestants import ContestantFailure, Entrant, at_work, chosen, entrants
from forward_figures import findings
from forward_models import Models
from forward_plot import as_markdown, plot, sentences, show
from forward_shapes import CONTEXT_LENGTH, SHAPES
from forward_turns import OURS, WRITE_CONTEXT, Notes, Plan, Run, ShapeRun, Turn, Writing
from provenance import provenance
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole, within
from foredraft.evaluation.report import write_record
from foredraft.model.devices import find_device, use_threads

MOST_ROWS = 512  # that a peer computes in one batch
Many = Parameter(consume_multiple=True, negative=())
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Annotated[Path, Parameter(alias="-o")] = Path("docs/results/forward-cpu.json"),
    contestants: str = "",
    shapes: str = ",".join(SHAPES),
    contexts: Annotated[tuple[int, ...], Many] = (128, 1024),
    rows: Annotated[tuple[int, ...], Many] = (1, 8, 16, 32, 64),
    rounds: int = 3,
    seconds: float = 0.2,
    least: int = 3,
    new_tokens: int = 64,
    threads: int = os.cpu_count() or 1,
    seed: int = 0,
    native: str = "auto",
    llama_python: Path = Path(sys.executable),
    openvino_python: Path = Path(sys.executable),
    folder: Path = Path(".work/forward"),
    markdown: Path | None = None,
) -> int:
    """Measure, print, and write OUTPUT (JSON, anew after every sweep over the rows) with a picture beside it.

    Args:
        contestants: Names with commas between them: native, native int8, module, transformers, llama.cpp, OpenVINO; all
            that can take part where none is given.
        shapes: Names with commas between them: 31m, 110m, 350m.
        contexts: Positions that the cache holds before the rows.
        rows: Tokens that one forward computes.
        seconds: How long a contestant computes in each turn.
        least: Least forwards in each turn.
        new_tokens: Length of the texts, after a prompt of 128 tokens.
        threads: Of everybody; one for each core where none is given.
        native: Kernels of the native path.
        llama_python: Python that has llama-cpp-python and gguf.
        openvino_python: Python that has openvino, openvino-genai and, where the models are not yet written,
            optimum-intel.
        folder: Where models are written once.
        markdown: File for the tables as markdown.
    """
    named, of_shapes = names_in(contestants), names_in(shapes)
    plan = Plan(
        contexts=contexts,
        rows=rows,
        rounds=rounds,
        seconds=seconds,
        least=least,
        new_tokens=new_tokens,
        threads=threads,
        seed=seed,
    )
    check(plan, of_shapes, native)
    present, left_out = chosen(entrants(str(llama_python), str(openvino_python), native), named)
    refuse_named(left_out, named)
    every = {name: Models(name, SHAPES[name], seed, folder) for name in of_shapes}
    for name, models in every.items():
        left_out |= {f"{name}: {one}": reason for one, reason in models.prepare(present.values()).items()}
    about = provenance() | {"dtype": "bfloat16", "native": native} | asdict(plan)
    about["shapes"] = {name: asdict(m.shape) | {"parameters": m.shape.parameters} for name, m in every.items()}
    result = about | measure(present, plan, every, left_out, lambda found: write_record(about | found, output))
    finish(result, output.with_suffix(".svg"), markdown)
    return int(any(left_out_for_its_logits(result, name) for name in OURS))


def check(plan: Plan, shapes: Sequence[str], native: str) -> None:
    """Raises `ConfigError` for a shape, kernels or a number that cannot be."""
    unknown = [name for name in shapes if name not in SHAPES]
    require(bool(shapes) and not unknown, f"--shapes has {unknown or 'no name'}; known: {', '.join(SHAPES)}")
    require(bool(plan.contexts and plan.rows), "there is no cell; give at least one of --contexts and of --rows")
    for values in (shapes, plan.contexts, plan.rows):
        require(len(set(values)) == len(values), f"{list(values)} names a value twice; give each once")
    for number in plan.rows:
        whole("--rows", number, 1, MOST_ROWS)
    for number in plan.contexts:
        whole("--contexts", number, 1, CONTEXT_LENGTH - max(plan.rows))
    whole("--new-tokens", plan.new_tokens, 2, CONTEXT_LENGTH - WRITE_CONTEXT)
    whole("--rounds", plan.rounds, 1)
    whole("--least", plan.least, 1)
    within("--seconds", plan.seconds, 0, 3600)
    use_threads(plan.threads)
    find_device("cpu", native)


def measure(present: Mapping[str, Entrant], plan: Plan, every: Mapping[str, Models], left_out: dict, keep) -> dict:
    """Start everybody and take all turns; what they say is handed to `keep` again and again, and at last returned."""
    notes = Notes(left_out=dict(left_out))
    with TemporaryDirectory(prefix="foredraft-forward-") as logs, at_work(present, plan.threads, Path(logs)) as workers:
        run = Run(workers, plan, notes)
        turns: list[Turn] = []
        writings: list[Writing] = []
        for turn in watched(run, every):
            (turns if isinstance(turn, Turn) else writings).append(turn)
            if isinstance(turn, Writing) or turn.rows == plan.rows[-1]:
                keep(found(turns, writings, notes, complete=False))
    result = found(turns, writings, notes, complete=True)
    keep(result)
    return result


def watched(run: Run, every: Mapping[str, Models]) -> Iterator[Turn | Writing]:
    """All turns of all shapes, with a bar."""
    plan = run.plan
    in_all = len(every) * plan.rounds * (len(plan.contexts) * len(plan.rows) + 1)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("turns", total=in_all)
        for name, models in every.items():
            bar.update(task, description=f"{name}: loading")
            for turn in ShapeRun(run, name, models).turns():
                bar.update(task, advance=1, description=f"{name}, round {turn.round + 1}")
                yield turn


def found(turns: Sequence[Turn], writings: Sequence[Writing], notes: Notes, *, complete: bool) -> dict:
    """Everything that is known so far."""
    return findings(turns, writings, SHAPES) | {
        "complete": complete,
        "left_out": notes.left_out,
        "contestants": notes.about,
        "logit_distances": notes.distances,
        "read_bandwidths": notes.bandwidths,
        "waiting_cpu_share": notes.waiting.shares(),
        "load_average_after": os.getloadavg(),
    }


def finish(result: Mapping, picture: Path, markdown: Path | None) -> None:
    """The picture, the tables as markdown where they are wanted, and on the screen with the verdicts."""
    if not plot(result, picture):
        print("no plot: matplotlib is not installed", file=sys.stderr)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(as_markdown(result) + "\n" + "\n".join(sentences(result)) + "\n", encoding="utf-8")
    show(result)


def left_out_for_its_logits(result: Mapping, name: str) -> bool:
    """Whether one of ours computes another model than the weights are."""
    return any("logits are" in reason for key, reason in result["left_out"].items() if key.endswith(f": {name}"))


def command(arguments: list[str] | None = None) -> int:
    """Run the command line; a mistake is one line and exit code 2, a contestant that does not start exit code 1."""
    return run_command(app, arguments, ContestantFailure)


if __name__ == "__main__":
    sys.exit(command())
