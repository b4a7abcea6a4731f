"""Texts with speculation against texts without, token by token: how many of them differ.

    python benchmarks/equality.py --prompts-dir ../shared/data/prompts --output docs/results/equality-cpu.json

Each prompt is written plainly, alone; then again by every drafter, in batches, so that its rows share their forwards
with others'. Greedy and from seeds. On the native path none may differ in bf16 either: a difference fails the run.
"""

import json
import sys
from pathlib import Path

from command_line import run_command
from cyclopts import App
from drafter_contestants import configs_of
from provenance import provenance
from rich.console import Console
from rich.progress import track
from rich.table import Table
from workloads import in_turn, suite

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.replaced_file import replace_text
from foredraft.model.native_decoder import NativeDecoder

PLAIN = SpeculationConfig(method="none")
TEMPERATURES = (0.0, 1.0)
CONTESTANTS = (
    "ngram,suffix,draft model,draft model tree,medusa tree,eagle3,eagle3 tree,mtp tree,dflash,dflash tree,auto"
)
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    target: str = "tiny",
    draft_model: str = "tiny-draft",
    contestants: str = CONTESTANTS,
    prompts_dir: Path | None = None,
    prompts: int = 200,
    prompt_tokens: int = 512,
    max_new_tokens: int = 64,
    batch: int = 8,
    dtype: str = "bf16",
    native: str | None = None,
    threads: int | None = None,
) -> int:
    """Count texts that differ, print the counts, and write OUTPUT (JSON).

    Args:
        contestants: Names with commas between them, of the benchmark of drafters, and auto.
        prompts_dir: Folder of Spec-Bench-format .jsonl files; what it has replaces our own prompts of that workload.
        prompts: How many, of all workloads in turn.
        prompt_tokens: Longer prompts are cut to so many.
        batch: Requests that speculate together.
    """
    engine = Engine.from_pretrained(target, dtype=dtype, native=native, threads=threads, max_batch=batch)
    texts = in_turn(list(suite([], prompts_dir).values()))[:prompts]
    encoded = [engine.chat([{"role": "user", "content": text}])[:prompt_tokens] for text in texts]
    configs = configs_for(contestants, draft_model)
    cells = [
        cell for temperature in TEMPERATURES for cell in compare(engine, configs, encoded, temperature, max_new_tokens)
    ]
    record = {**provenance(), "path": engine.target.model.path, "prompts": len(encoded), "cells": cells}
    replace_text(output, json.dumps(record, indent=1))
    show(cells)
    exact = isinstance(engine.target.model.decoder, NativeDecoder) or dtype == "fp32"
    return 1 if exact and any(cell["different"] for cell in cells) else 0


def configs_for(names: str, draft_model: str) -> dict[str, SpeculationConfig]:
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    configs = configs_of([name for name in wanted if name != "auto"], {}, draft_model)
    return configs | ({"auto": SpeculationConfig()} if "auto" in wanted else {})


def compare(
    engine: Engine,
    configs: dict[str, SpeculationConfig],
    prompts: list[list[int]],
    temperature: float,
    max_new_tokens: int,
) -> list[dict]:
    """Of each drafter: texts, those that differ from plain ones, tokens, tokens a step."""
    sampling = [
        SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
        for seed in range(len(prompts))
    ]
    with engine.cold():
        label = f"plain, temperature {temperature:g}"
        plain = [
            engine.generate([prompt], [params], PLAIN)[0].token_ids
            for prompt, params in track(list(zip(prompts, sampling, strict=True)), label, console=Console(stderr=True))
        ]
        cells = []
        for name, config in configs.items():
            outputs = engine.generate(prompts, sampling, config)
            different = [index for index, output in enumerate(outputs) if output.token_ids != plain[index]]
            written, rounds = sum(len(o.token_ids) for o in outputs), sum(o.statistics.rounds for o in outputs)
            cells.append(
                {
                    "drafter": name,
                    "temperature": temperature,
                    "texts": len(outputs),
                    "different": len(different),
                    "first_different": different[:5],
                    "tokens": written,
                    "tokens_per_step": round(written / max(1, rounds), 3),
                }
            )
    return cells


def show(cells: list[dict]) -> None:
    table = Table(
        "drafter", "temperature", "texts", "different", "tokens a step", title="Texts that differ from plain ones"
    )
    for cell in cells:
        different = str(cell["different"]) if not cell["different"] else f"[red]{cell['different']}"
        table.add_row(
            cell["drafter"], f"{cell['temperature']:g}", str(cell["texts"]), different, f"{cell['tokens_per_step']:.2f}"
        )
    Console().print(table)


if __name__ == "__main__":
    sys.exit(run_command(app, None))
