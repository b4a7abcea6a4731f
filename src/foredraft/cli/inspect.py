"""`foredraft inspect`: what a model is, and what foredraft can do with it."""

import json
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foredraft.cli.cost_report import CostReport, cost_report, drafter_table, forward_table
from foredraft.cli.flags import flags_of, given
from foredraft.cli.head_report import HeadReport
from foredraft.cli.load_options import BATCHING, LoadOptions, loading
from foredraft.cli.model_report import ModelReport, report_of
from foredraft.core.errors import ConfigError
from foredraft.core.speculation_config import AUTO, OFF, SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.model.target import ModelTarget, load_target

PlaceFlags = flags_of(LoadOptions, omit=("model", *BATCHING))
DRAFTER = {"method": "--drafter"}
MeasuredFlags = flags_of(SpeculationConfig, names=DRAFTER, omit=("model",))


def inspect(
    model: str,
    /,
    *,
    draft_model: str | None = None,
    costs: Annotated[bool, Parameter(show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", show_default=False)] = False,
    load: Annotated[PlaceFlags, Parameter(name="*", group="Model")] = PlaceFlags(),  # noqa: B008
    measured: Annotated[MeasuredFlags, Parameter(name="*", group="Drafts that --costs measures")] = MeasuredFlags(),  # noqa: B008
) -> None:
    """Load a model and say what it is, which drafting methods fit it, and what it costs to run.

    Args:
        model: A folder, a hub id or an embedded name.
        draft_model: Try this model or head as its drafter; a head is described, with how its files were read.
        costs: Measure what forwards and drafts cost on this machine, of every drafter that auto would choose from or
            of the one that --drafter names, and keep it for the policy.
        as_json: Print one JSON object instead of a table.
    """
    asked = given(measured)
    for name in () if costs else asked:
        flag = DRAFTER.get(name, f"--{name.replace('_', '-')}")
        raise ConfigError(f"{flag} says what --costs is to measure; give --costs with it")
    with loading(model):
        target = load_target(model, **given(load))
        report = report_of(target, draft_model)
    priced = costs_of(target, {"method": AUTO, "model": draft_model} | asked) if costs else None
    if as_json:
        print(json.dumps(asdict(report) | ({"costs": asdict(priced)} if priced else {})))
    else:
        console = Console()
        console.print(table_of(report, title=model))
        for table in [forward_table(priced), drafter_table(priced)] if priced else []:
            console.print(table)


def costs_of(target: ModelTarget, asked: dict[str, Any]) -> CostReport:
    with measuring():
        return cost_report(Engine(target, speculation=OFF), SpeculationConfig(**asked))


def measuring() -> AbstractContextManager:
    """Says on a terminal's standard error that costs are being measured."""
    return Console(stderr=True).status("measuring what steps cost") if sys.stderr.isatty() else nullcontext()


def table_of(report: ModelReport, *, title: str) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows_of(report).items():
        table.add_row(name, Text(value))
    return table


def rows_of(report: ModelReport) -> dict[str, str]:
    stops = ", ".join(f"{token!r} ({i})" for i, token in report.stop_tokens.items())
    return {
        "architecture": report.architecture,
        "layers": f"{report.layers}, hidden size {report.hidden_size}",
        "heads": f"{report.heads}, of keys and values {report.kv_heads}",
        "head size": f"keys {numbers(report.key_sizes)}, values {numbers(report.value_sizes)}",
        "window": window_of(report),
        "context": f"{report.context_length} tokens",
        "vocabulary": f"{report.vocabulary_size} tokens in {report.vocabulary_rows} rows of logits",
        "stop tokens": stops or "none",
        "chat template": "yes" if report.chat_template else "no",
        "EAGLE-3 features": f"input of layers {numbers(report.feature_layers)}"
        if report.feature_layers
        else "too few layers",
        "path": f"{report.dtype}, {report.path}",
        "memory": f"weights {size(report.weight_bytes)}, cache {size(report.cache_bytes_per_token)} a token",
        "cache": f"{report.cache_tokens} tokens, {size(report.cache_tokens * report.cache_bytes_per_token)}",
        **(
            {"trained heads": "\n".join(f"{name}: {what}" for name, what in report.own_heads.items())}
            if report.own_heads
            else {}
        ),
        **(head_rows(report.head) if report.head else {}),
        **{f"drafter {name}": verdict(name, report) for name in report.drafters},
    }


def verdict(drafter: str, report: ModelReport) -> str:
    """Whether the drafter fits, why not, and by which path its network is computed."""
    misfit, path = report.drafters[drafter], report.drafter_paths.get(drafter)
    return f"no: {misfit}" if misfit else f"fits; {path}" if path else "fits"


def head_rows(head: HeadReport) -> dict[str, str]:
    if head.problem is not None:
        return {"head": head.problem}
    facts = ", ".join(f"{name} {shown(value)}" for name, value in head.facts.items())
    notes = {"head read as": "\n".join(head.notes)} if head.notes else {}
    return {"head": f"{head.name}: {head.method}, {head.format}", "head config": facts, **notes}


def shown(value: object) -> str:
    """A value of a config in few signs."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(inner)}" for name, inner in value.items())
    return " ".join(map(shown, value)) if isinstance(value, tuple | list) else str(value)


def window_of(report: ModelReport) -> str:
    if report.window is None:
        return "none: every layer sees the whole context"
    return f"{report.window} positions in {len(report.window_layers)} of {report.layers} layers"


def numbers(values: list[int]) -> str:
    return ", ".join(map(str, values))


def size(count: int) -> str:
    """Bytes as a number with a decimal unit."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
