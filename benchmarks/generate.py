"""Tokens a second of foredraft with each drafter and of transformers' `generate`, side by side in one run.

    python benchmarks/generate.py --target tiny --draft-model tiny-draft --output docs/results/generate-cpu.json

All contestants run the same weights in the same dtype on the same threads, greedily, and take turns prompt by prompt
in every round, so that a machine that slows down slows everybody. Texts are compared: in fp32 a foredraft contestant
that writes another text than foredraft plain fails the run.
"""

import hashlib
import json
import sys
from pathlib import Path

import report
from contestants import FOREDRAFT, PEER_PLAIN, PLAIN, TRANSFORMERS, Contestant, make_contestants
from cyclopts import App
from provenance import provenance, read_bandwidth
from rich.console import Console
from rich.progress import track
from summary import Turn, plain_step, summarise
from workloads import collect

from foredraft import Engine
from foredraft.core.speculation_config import OFF

WARM_UP_PROMPTS = 1
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
) -> int:
    """Measure, print, and write OUTPUT (JSON) with a plot beside it.

    Parameters
    ----------
    workloads: Names with commas between them; all there are where none is given.
    prompts_dir: Folder of Spec-Bench-format .jsonl files, mapped to workloads by category.
    ignore_eos: Everybody writes on to max_new_tokens; otherwise all stop at the model's end of text.
    """
    place = {"dtype": dtype, "device": "cpu", "threads": threads}
    engine = Engine.from_pretrained(target, **place, max_batch=1, prefix_cache=False, speculation=OFF)
    names = [name.strip() for name in workloads.split(",") if name.strip()]
    texts = collect(names, prompts_dir)
    prompts = {name: fitting(engine, its, prompts_per_workload, max_new_tokens) for name, its in texts.items()}
    entrants = make_contestants(engine, target, draft_model, max_new_tokens, ignore_eos)
    bandwidth = read_bandwidth()
    warm_up(entrants, prompts)
    turns = play(entrants, prompts, rounds)
    settings = {"target": target, "draft_model": draft_model, "threads": threads, "rounds": rounds}
    settings |= {"max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos, "seed": None, "temperature": 0}
    result = provenance() | settings | findings(engine, prompts, turns, bandwidth)
    write(result, output)
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


def warm_up(entrants: dict[str, Contestant], prompts: dict[str, list[list[int]]]) -> None:
    for its in list(prompts.values())[:WARM_UP_PROMPTS]:
        for write_text in entrants.values():
            write_text(its[0])


def play(entrants: dict[str, Contestant], prompts: dict[str, list[list[int]]], rounds: int) -> list[Turn]:
    """Every contestant on every prompt, one after another on the same prompt, a different one first each time."""
    places = [(name, index, tokens) for name, its in prompts.items() for index, tokens in enumerate(its)]
    turns, names = [], list(entrants)
    for count, (number, (workload, index, tokens)) in enumerate(
        track([(number, place) for number in range(rounds) for place in places], console=Console(stderr=True))
    ):
        first = count % len(names)
        samples = {name: entrants[name](tokens) for name in names[first:] + names[:first]}
        in_order = {name: samples[name] for name in names}
        turns.append(Turn(workload=workload, prompt=index, round=number, prompt_tokens=len(tokens), samples=in_order))
    return turns


def findings(engine: Engine, prompts: dict[str, list[list[int]]], turns: list[Turn], bandwidth: float) -> dict:
    model = engine.target.model
    step = plain_step(turns, weight_bytes=bytes_read(model), bytes_per_token=model.bytes_per_token, bandwidth=bandwidth)
    return {
        "dtype": str(model.dtype).removeprefix("torch."),
        "path": model.path,
        "weight_bytes": model.weight_bytes,
        "read_bandwidth": bandwidth,
        "contestants": FOREDRAFT | TRANSFORMERS,
        "prompts": sum(map(len, prompts.values())),
        "prompts_by_workload": {name: len(its) for name, its in prompts.items()},
        "plain_step": step,
        "summary": summarise(turns),
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


def write(result: dict, output: Path) -> None:
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    drawn = report.plot(result, output.with_suffix(".svg"))
    if not drawn:
        print("no plot: matplotlib is not installed", file=sys.stderr)


def verdict(result: dict) -> int:
    """1 where a drafter changed the text in fp32, which rounding does not explain; otherwise 0."""
    changed = {
        f"{workload}: {name}": group[name]["prompts_unlike_plain"]
        for workload, group in result["summary"].items()
        for name in FOREDRAFT
        if group[name]["prompts_unlike_plain"]
    }
    unlike_peer = {w: g[PLAIN]["prompts_unlike_hf_plain"] for w, g in result["summary"].items()}
    print(f"prompts where foredraft plain and {PEER_PLAIN} differ: {unlike_peer}")
    print(f"prompts where a drafter changed the text: {changed or 'none'}")
    return int(bool(changed) and result["dtype"] == "float32")


if __name__ == "__main__":
    app()
