"""Tokens a second of foredraft with each drafter, of transformers' `generate` and of peers, side by side in one run.

    python benchmarks/generate.py --output docs/results/generate-cpu.json --llama-python PYTHON --openvino-python PYTHON

All contestants run the same weights in the same dtype on the same threads, greedily, and take turns prompt by prompt
in every round, so that a machine that slows down slows everybody. Texts are compared: in fp32 a foredraft contestant
that writes another text than foredraft plain fails the run.

llama.cpp and OpenVINO GenAI work in processes of their own, on bf16 weights, where a Python is named that has them:
llama.cpp in bf16, OpenVINO too where the CPU has such arithmetic, else in fp32, as `openvino_place` says. llama.cpp
decodes plainly by its own functions; its speculation is that of llama-cpp-python: prompt lookup as it brings it, and a
draft model behind its interface for drafters, for which it brings none. OpenVINO GenAI brings both. Nobody keeps what
it has computed of earlier prompts. A peer rounds in its own way, so its texts may differ; how many agree is reported.
"""

import hashlib
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

import report
import torch
from command_line import run_command
from contestants import FOREDRAFT, PEER_PLAIN, PLAIN, ends_of, make_contestants
from cyclopts import App
from forward_contestants import LLAMA, OPENVINO, ContestantFailure, at_work
from generate_peers import WAYS, Task, clocks_of, find_peers, load, peer_contestants
from generate_plot import plot
from generate_systems import compare
from generate_systems_table import as_markdown
from generate_turns import Stage
from provenance import provenance, read_bandwidth
from summary import Turn, plain_step, summarise
from workloads import collect

from foredraft import Engine
from foredraft.core.errors import require
from foredraft.core.heap import settle
from foredraft.core.speculation_config import OFF

app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    target: str = "tiny",
    draft_model: str = "tiny-draft",
    prompts_per_workload: int = 6,
    max_new_tokens: int = 128,
    rounds: int = 3,
    workloads: str = "",
    prompts_dir: Path | None = None,
    threads: int = 2,
    dtype: str = "auto",
    ignore_eos: bool = True,
    llama_python: Path | None = None,
    openvino_python: Path | None = None,
    folder: Path = Path(".work/generate"),
    markdown: Path | None = None,
) -> int:
    """Measure, print, and write OUTPUT (JSON) with a plot beside it.

    Parameters
    ----------
    workloads: Names with commas between them; all there are where none is given.
    prompts_dir: Folder of Spec-Bench-format .jsonl files, mapped to workloads by category.
    ignore_eos: Everybody writes on to max_new_tokens; otherwise all stop at the model's end of text.
    llama_python: Python that has llama-cpp-python and gguf; without one llama.cpp takes no part.
    openvino_python: Python that has openvino, openvino-genai and, where the models are not yet written, optimum-intel;
        without one OpenVINO GenAI takes no part.
    folder: Where the models are written once as peers read them.
    markdown: File for the table of all systems as markdown.
    """
    peers, left_out = find_peers({LLAMA: llama_python, OPENVINO: openvino_python})
    place = {"dtype": dtype, "device": "cpu", "threads": threads}
    engine = Engine.from_pretrained(target, **place, max_batch=1, prefix_cache=False, speculation=OFF)
    names = [name.strip() for name in workloads.split(",") if name.strip()]
    texts = collect(names, prompts_dir)
    prompts = {name: fitting(engine, its, prompts_per_workload, max_new_tokens) for name, its in texts.items()}
    require(not peers or engine.target.model.dtype == torch.bfloat16, "peers compute in bf16; give --dtype bf16")
    new, ends, bandwidth = max_new_tokens, ends_of(engine, target, ignore_eos), read_bandwidth()
    own, absent = make_contestants(engine, target, draft_model, new, ends)
    length = max(len(tokens) for its in prompts.values() for tokens in its) + new
    task = Task(target=target, draft=draft_model, folder=folder, threads=threads, length=length, new=new, ends=ends)
    with TemporaryDirectory(prefix="foredraft-generate-") as logs, at_work(peers, threads, Path(logs)) as workers:
        about = {name: load(worker, task) for name, worker in workers.items()}
        stage = Stage(own | peer_contestants(workers, task), clocks_of(workers, process_time))
        stage.warm_up(prompts)
        settle()  # a full collection of garbage takes longer than a text
        turns = stage.play(prompts, rounds)
    settings = {"target": target, "draft_model": draft_model, "threads": threads, "rounds": rounds}
    settings |= {"max_new_tokens": new, "ignore_eos": ignore_eos, "seed": None, "temperature": 0}
    left_out |= absent | stage.left_out
    settings |= {"peers": about, "left_out": left_out, "waiting_cpu_share": stage.waiting.shares()}
    result = provenance() | settings | findings(engine, prompts, turns, bandwidth)
    write(result, output, markdown)
    report.show(result)
    return verdict(result)


def fitting(engine: Engine, texts: list[str], count: int, new: int) -> list[list[int]]:
    """Token ids of the first `count` texts that leave room for the answer, in the chat template where there is one."""
    encoded = (encode(engine, text) for text in texts)
    fits = [tokens for tokens in encoded if len(tokens) + new <= engine.target.context_length]
    return fits[:count]


def encode(engine: Engine, text: str) -> list[int]:
    has_template = bool(engine.target.tokenizer.chat_template)
    return engine.chat([{"role": "user", "content": text}]) if has_template else engine.encode(text)


def findings(engine: Engine, prompts: dict[str, list[list[int]]], turns: list[Turn], bandwidth: float) -> dict:
    model = engine.target.model
    summary = summarise(turns)
    step = plain_step(turns, weight_bytes=bytes_read(model), bytes_per_token=model.bytes_per_token, bandwidth=bandwidth)
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "path": model.path,
        "weight_bytes": model.weight_bytes,
        "read_bandwidth": bandwidth,
        "contestants": {name: WAYS[name] for name in turns[0].samples},
        "prompts": sum(map(len, prompts.values())),
        "prompts_by_workload": {name: len(its) for name, its in prompts.items()},
        "plain_step": step,
        "summary": summary,
        "systems": compare(turns, summary),
        "prompts_sha256": digest(prompts),
        "turns": [turn.record() for turn in turns],
    }


def digest(prompts: dict[str, list[list[int]]]) -> str:
    """Stands for prompts that may not be ours to pass on."""
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def bytes_read(model) -> int:
    """Weight bytes a step reads: an embedding that is not the output layer as well is read by single rows."""
    config = model.module.config.get_text_config()
    embedding = model.module.get_input_embeddings().weight
    return model.weight_bytes - (0 if config.tie_word_embeddings else embedding.numel() * embedding.element_size())


def write(result: dict, output: Path, markdown: Path | None) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(as_markdown(result), encoding="utf-8")
    if not plot(result, output.with_suffix(".svg")):
        print("no plot: matplotlib is not installed", file=sys.stderr)


def verdict(result: dict) -> int:
    """1 where a drafter changed the text in fp32, which rounding does not explain; otherwise 0."""
    changed = {
        f"{workload}: {name}": group[name]["prompts_unlike_plain"]
        for workload, group in result["summary"].items()
        for name in FOREDRAFT
        if name in group and group[name]["prompts_unlike_plain"]
    }
    unlike_peer = {w: g[PLAIN]["prompts_unlike_hf_plain"] for w, g in result["summary"].items()}
    print(f"prompts where foredraft plain and {PEER_PLAIN} differ: {unlike_peer}")
    print(f"prompts where a drafter changed the text: {changed or 'none'}")
    return int(bool(changed) and result["dtype"] == "float32")


def command(arguments: list[str] | None = None) -> int:
    """Run the command line; a mistake is one line and exit code 2, a peer that does not start exit code 1."""
    return run_command(app, arguments, ContestantFailure)


if __name__ == "__main__":
    sys.exit(command())
