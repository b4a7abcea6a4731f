"""What forwards and texts take on a device, in a minute or two: made for a GPU that is lent for minutes.

    python benchmarks/device.py --device cuda --output docs/results/cuda.json

Forwards of the target, then of models of other sizes with random weights, by rows, requests and context, each as its
module runs and as the device runs it. Texts of the target by method, several at once, temperature 0: tokens a second,
medians of the rounds, each method's turn beside plain decoding's; in fp32 a text that differs fails the run.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import torch
from command_line import run_command
from cyclopts import App, Parameter
from drafters import circumstances
from forward_shapes import Shape
from provenance import provenance
from rich.console import Console
from rich.progress import track
from transformers import LlamaConfig, LlamaForCausalLM
from workloads import collect

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.errors import require
from foredraft.core.sampling_params import whole, within
from foredraft.core.speculation_config import OFF
from foredraft.core.vocabulary import Vocabulary
from foredraft.engine.cost_measuring import measured_forwards
from foredraft.evaluation.report import write_record
from foredraft.evaluation.turns import rotated
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import Device
from foredraft.model.native_program import released
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

SIZES = {  # Llama's
    "micro": Shape(
        hidden=64, layers=2, heads=4, kv_heads=2, intermediate=128, vocabulary=256, tied=False, head_size=16
    ),
    "1b": Shape(hidden=2048, layers=16, heads=32, kv_heads=8, intermediate=8192, vocabulary=128256, tied=False),
    "8b": Shape(
        hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocabulary=128256, tied=False, head_size=128
    ),
}
SLOTS = 20000
METHODS = {  # A text comes again in every round, so nobody drafts from past outputs.
    "none": {"method": "none"},
    "suffix": {"method": "suffix", "suffix_decoding_max_cached_requests": 0},
    "recycling": {"method": "recycling", "tree_size": 12},
    "draft_model": {"method": "draft_model", "model": "tiny-draft"},
    "medusa": {"method": "medusa", "tree_size": 15},
    "eagle3": {"method": "eagle3"},
    "auto": {"method": "auto", "suffix_decoding_max_cached_requests": 0},
}
Several = Parameter(consume_multiple=True, negative=())
Many = Annotated[tuple[str, ...], Several]
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    target: str = "tiny",
    device: str = "auto",
    dtype: str = "auto",
    sizes: Many = ("8b",),
    methods: Many = tuple(METHODS),
    at_once: Annotated[tuple[int, ...], Several] = (1, 4, 16),
    max_new_tokens: int = 96,
    rounds: int = 3,
    seconds: float = 4.0,
) -> int:
    """Measure, print, and write OUTPUT (JSON, anew after every part).

    Args:
        sizes: Models with random weights whose forwards are measured besides.
        at_once: Requests in flight.
        seconds: For the forwards of one model by one path.
    """
    check(sizes, methods, at_once, rounds, seconds)
    engine = Engine.from_pretrained(target, device=device, dtype=dtype, speculation=OFF, max_batch=max(at_once))
    prompts = [its[0] for its in collect([], None).values()]
    about = provenance() | {"target": target, "device": device, "max_new_tokens": max_new_tokens, "rounds": rounds}
    about |= circumstances(engine, {"own": [engine.encode(prompt) for prompt in prompts]})
    record = {"forwards": {target: forwards(engine, seconds)}, "texts": []}
    write_record(about | record, output)
    sampling = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    for count in at_once:
        asked = [prompts[i % len(prompts)] for i in range(count)]
        record["texts"] += texts(engine, asked, sampling, methods, rounds)
        write_record(about | record, output)
    for size in sizes:
        record["forwards"][size] = forwards(random_engine(size, engine), seconds)
        write_record(about | record, output)
    tell(record)
    exact = engine.target.model.dtype is torch.float32
    return int(exact and any(own["unlike_plain"] for own in record["texts"]))


def check(sizes: Many, methods: Many, at_once: tuple[int, ...], rounds: int, seconds: float) -> None:
    for flag, given, known in (("--sizes", sizes, SIZES), ("--methods", methods, METHODS)):
        for name in given:
            require(name in known, f"{flag} is {name!r}; it must be one of {', '.join(known)}")
    require(at_once, "--at-once needs one number or more")
    for count in at_once:
        whole("--at-once", count, 1, 256)
    whole("--rounds", rounds, 1)
    within("--seconds", seconds, 0, 3600)


def forwards(engine: Engine, seconds: float) -> dict[str, list[dict]]:
    """Costs of forwards as the module runs, where it has kept its weights, and as the device runs them in its place."""
    model, found = engine.target.model, {}
    paths = {"device": model.decoder} if released(model.module) else {"module": None, "device": model.decoder}
    for path, decoder in paths.items():
        if path == "module" or decoder is not None:
            model.decoder = decoder
            found[path] = [asdict(cost) for cost in measured_forwards(engine, seconds=seconds)]
    return found


def random_engine(size: str, beside: Engine) -> Engine:
    """A target of Llama's architecture with random weights, where `beside` runs."""
    place, dtype = beside.target.place, beside.target.model.dtype
    config, vocabulary = SIZES[size].config(), SIZES[size].vocabulary
    with place.torch_device:
        module = LlamaForCausalLM._from_config(config, attn_implementation=NAME, dtype=dtype)
    model = ready(module.eval().requires_grad_(False), config, place)
    rows = Vocabulary(rows=vocabulary, size=vocabulary)
    target = ModelTarget(size, model, place, SlotPool(SLOTS, place.torch_device), None, rows)
    return Engine(target, speculation=OFF, max_batch=beside.scheduler.max_batch)


def ready(module: LlamaForCausalLM, config: LlamaConfig, place: Device) -> PackedModel:
    model = PackedModel(module, capability_of(LlamaForCausalLM, config), place.torch_device)
    model.path = place.prepare(module)
    model.decoder = place.decoder(model)
    return model


def texts(engine: Engine, prompts: list[str], sampling: SamplingParams, methods: Many, rounds: int) -> list[dict]:
    """Tokens a second of each method over all prompts at once, in turns; none counts that runs a method first."""
    names = list(dict.fromkeys(["none", *methods]))
    rates: dict[str, list[float]] = {name: [] for name in names}
    written: dict[str, list[list[int]]] = {}
    for turn in track(range(rounds + 1), f"{len(prompts)} at once", console=Console(stderr=True), transient=True):
        for name in rotated(names, turn):
            start = perf_counter()
            with engine.cold():
                outputs = engine.generate(prompts, sampling, SpeculationConfig.from_dict(METHODS[name]))
            taken, written[name] = perf_counter() - start, [output.token_ids for output in outputs]
            if turn:
                rates[name].append(sum(map(len, written[name])) / taken)
    return [
        {
            "at_once": len(prompts),
            "method": name,
            "tokens_per_second": own,
            "to_plain": median(own) / median(rates["none"]),
            "unlike_plain": sum(one != other for one, other in zip(written[name], written["none"], strict=True)),
        }
        for name, own in rates.items()
    ]


def tell(record: dict) -> None:
    for name, paths in record["forwards"].items():
        for path, costs in paths.items():
            shown = (c for c in costs if c["rows"] in (1, 16, 64) and c["requests"] in (1, 16))
            told = ", ".join(
                f"{c['requests']} x {c['rows']} at {c['context']}: {1e3 * c['seconds']:.2f}" for c in shown
            )
            print(f"{name} by its {path}, ms by requests x rows at context: {told}")
    for own in record["texts"]:
        rate = f"{median(own['tokens_per_second']):.0f} tokens a second, {own['to_plain']:.2f} of plain"
        print(f"{own['at_once']} at once, {own['method']}: {rate}, {own['unlike_plain']} unlike plain")


def command(arguments: list[str] | None = None) -> int:
    return run_command(app, arguments)


if __name__ == "__main__":
    sys.exit(command())
