"""Every drafter against plain decoding: acceptance by position, tau, what drafting costs, tokens a second.

    python benchmarks/drafters.py --target tiny --output docs/results/drafters-cpu.json

All contestants write the same prompts from the same seeds and take turns prompt by prompt, a different one first each
time. A contestant whose head is not there is left out with a line that says so. In fp32 a contestant that writes
another text than plain decoding fails the run.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import torch
from command_line import run_command
from cyclopts import App, Parameter
from drafter_contestants import configs_of, make_contestants
from drafter_markdown import as_markdown
from drafter_plot import plot
from generate import digest, fitting
from provenance import provenance
from rich.console import Console
from rich.progress import Progress
from workloads import suite

from foredraft import ConfigError, Engine, SamplingParams, UserError
from foredraft.evaluation.drafter_report import PAPER_WIDTH, measure
from foredraft.evaluation.report import Report, write_record
from foredraft.evaluation.report_table import report_table
from foredraft.evaluation.turns import PLAIN

JUDGED = ("code", "json", "maths", "reasoning")  # the mean that drafters are judged by
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    target: str = "tiny",
    draft_model: str = "tiny-draft",
    contestants: str = "",
    settings: str = "{}",
    workloads: str = "",
    prompts_dir: Path | None = None,
    prompts_per_workload: int = 4,
    max_new_tokens: int = 128,
    ignore_eos: bool = False,
    temperatures: Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative=())] = (0.0, 1.0),
    rounds: int = 2,
    seed: int = 0,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int = 2,
    cache_tokens: int = 4096,
    one_engine: bool = False,
    markdown: Path | None = None,
) -> int:
    """Measure, print, and write OUTPUT (JSON) with a plot beside it.

    Args:
        contestants: Names with commas between them; all whose head is there where none is given.
        settings: Keys of the speculative config to change, as JSON by contestant, such as
            {"eagle3 tree": {"tree_size": 24}}; a new name with a method adds a contestant.
        workloads: Names with commas between them; all there are where none is given.
        prompts_dir: Folder of Spec-Bench-format .jsonl files; what it has replaces our own prompts of that workload.
        cache_tokens: Cache slots of each engine.
        one_engine: Load the target once for all, where it is too large to be loaded for each drafter.
        markdown: File for the tables as markdown.
    """
    named = names_in(contestants)
    place = {"dtype": dtype, "device": device, "threads": threads, "cache_tokens": cache_tokens}
    try:
        configs = configs_of(named, changes_in(settings), draft_model)
        texts = suite(names_in(workloads), prompts_dir)
        entrants, left_out = make_contestants(configs, lambda: load(target, place), together=one_engine)
        refuse_named(left_out, named)
        prompts = token_prompts(entrants[PLAIN].engine, texts, prompts_per_workload, max_new_tokens)
        sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=seed, ignore_eos=ignore_eos)
        report = run(entrants, prompts, temperatures, sampling, rounds)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    about = place | {"draft_model": draft_model, "one_engine": one_engine, "left_out": left_out}
    about |= circumstances(entrants[PLAIN].engine, prompts)
    save(report, provenance() | about, output, markdown)
    return verdict(report, about["dtype"])


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def changes_in(settings: str) -> dict[str, dict]:
    """Changed settings by contestant. Raises `ConfigError` for anything but a JSON object of objects."""
    try:
        changes = json.loads(settings)
    except json.JSONDecodeError:
        changes = None
    if not isinstance(changes, dict) or not all(isinstance(its, dict) for its in changes.values()):
        raise ConfigError(f'--settings is {settings!r}; it must be JSON like {{"eagle3": {{"tree_size": 15}}}}')
    return changes


def load(target: str, place: dict) -> Engine:
    return Engine.from_pretrained(target, prefix_cache=False, max_batch=1, **place)


def refuse_named(left_out: dict[str, str], named: list[str]) -> None:
    """Say who is left out; raise `ConfigError` where it was asked for by name."""
    for name, reason in left_out.items():
        if name in named:
            raise ConfigError(f"contestant {name!r} cannot take part: {reason}")
        print(f"left out: {name}: {reason}", file=sys.stderr)


def token_prompts(engine: Engine, texts: dict[str, list[str]], count: int, new: int) -> dict[str, list[list[int]]]:
    """Up to `count` prompts of each workload that leave room for the answer; a workload without any is left out."""
    prompts = {name: fitting(engine, its, count, new) for name, its in texts.items()}
    for name in (name for name, its in prompts.items() if not its):
        print(f"left out: workload {name}: no prompt leaves room for {new} tokens", file=sys.stderr)
    return {name: its for name, its in prompts.items() if its}


def run(entrants, prompts, temperatures: tuple[float, ...], sampling: SamplingParams, rounds: int) -> Report:
    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task("turns")
        return measure(
            entrants,
            prompts,
            temperatures=temperatures,
            sampling=sampling,
            rounds=rounds,
            means=means_over(list(prompts)),
            progress=lambda done, whole: bar.update(task, completed=done, total=whole),
        )


def means_over(workloads: list[str]) -> dict[str, tuple[str, ...]]:
    """The mean that drafters are judged by, over those of its workloads that were run, and the mean of all."""
    judged = tuple(name for name in JUDGED if name in workloads)
    means = {f"mean of {', '.join(judged)}": judged} if len(judged) > 1 else {}
    return means | ({"mean of all": tuple(workloads)} if len(workloads) > max(1, len(judged)) else {})


def circumstances(engine: Engine, prompts: dict[str, list[list[int]]]) -> dict:
    """What the report does not know. Prompts may not be ours to pass on, so their digest stands for them."""
    model = engine.target.model
    device = engine.target.place.torch_device
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU of `hardware`",
        "path": model.path,
        "weight_bytes": model.weight_bytes,
        "prompts_sha256": digest(prompts),
    }


def save(report: Report, about: dict, output: Path, markdown: Path | None) -> None:
    """The JSON, the plot beside it, the markdown where it is wanted, and the tables on the screen."""
    write_record(about | report.record(), output)
    subtitle = f"{report.target}, {about['dtype']}, {about['device']}, threads: {about['threads']}"
    if not plot(report, subtitle, output.with_suffix(".svg")):
        print("no plot: matplotlib is not installed", file=sys.stderr)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(as_markdown(report), encoding="utf-8")
    Console(width=None if Console().is_terminal else PAPER_WIDTH).print(report_table(report))


def verdict(report: Report, dtype: str) -> int:
    """1 where a drafter changed the text in fp32, which rounding does not explain; otherwise 0."""
    changed = {
        f"{row.group}, {row.contestant}, temperature {row.temperature:g}": row.prompts_unlike_plain
        for row in report.figures
        if row.prompts_unlike_plain and row.group in report.prompts
    }
    print(f"prompts where a drafter changed the text: {changed or 'none'}")
    return int(bool(changed) and dtype == "float32")


if __name__ == "__main__":
    sys.exit(run_command(app, None))
