"""`auto` against every fixed setting: tokens a second by workload, requests in flight and temperature, and verdicts.

    python benchmarks/policy.py --output docs/results/policy-cpu.json

A cell is a workload, a number of requests in flight and a temperature. Every contestant writes the same requests of a
cell, so many in flight and the next one begun when one has ended, as in a server; after a few for each one in flight
the others take their turns, a different one first.
Each keeps one engine through the run, so `auto` learns as it would in a server. Nobody knows anything of earlier runs,
but everybody practises first: a round over all cells, with prompts that no cell has. Three verdicts: `auto` is close to
the best fixed setting in every cell, hardly slower than plain decoding in any, and faster than each single setting over
all cells together. Plain decoding takes part a second time: what its two ratios differ by is the machine's noise. In
fp32 a contestant that writes another text than plain decoding fails the run.

With --replay the practice is watched, and afterwards time passes by the medians of what steps, drafts and choices took
in it. Texts, drafts and decisions are as real as before; the machine's noise is gone, and with it whatever it does that
is not usual. With --costs they are those of an earlier run, from the beginning: so two versions of the policy can be
compared to a hundredth, on a machine that does other things meanwhile.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from command_line import run_command
from cyclopts import App, Parameter
from drafters import changes_in, circumstances, names_in, refuse_named, token_prompts
from policy_contestants import (
    AUTO,
    Cell,
    Turn,
    configs_of,
    make_engines,
    require_room,
    settings_of,
    sweeps,
    take_turns,
)
from policy_figures import findings
from policy_plot import as_markdown, plot, sentences
from provenance import provenance
from replayed_time import ReplayedEngine, ReplayedTime
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, track
from workloads import collect, own_prompts

from foredraft import ConfigError, Engine, SamplingParams, SpeculationConfig
from foredraft.core.errors import require
from foredraft.core.heap import settle
from foredraft.core.sampling_params import whole
from foredraft.engine import kept_record
from foredraft.engine.cost_store import KIND, ready_costs, stored_costs
from foredraft.evaluation.report import write_record
from foredraft.evaluation.turns import PLAIN
from foredraft.model.target import Target, load_target

MOST_PROMPTS = 256  # of a workload
PRACTICE_EVERY = 4  # one prompt of so many is for practice, and in no cell
PRACTICE_SEEDS = 10**9  # beyond the seeds of any cell
PRACTICE_REQUESTS = 12  # of a cell at most, but a whole turn: longer cells need no longer practice
WORKLOADS = "code,json,retrieval,maths,reasoning,chat,translation,creative"
Many = Parameter(consume_multiple=True, negative=())
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    target: str = "tiny",
    draft_model: str = "tiny-draft",
    contestants: str = "",
    settings: str = "{}",
    workloads: str = WORKLOADS,
    prompts_dir: Path | None = None,
    concurrencies: Annotated[tuple[int, ...], Many] = (1, 4, 16),
    temperatures: Annotated[tuple[float, ...], Many] = (0.0, 1.0),
    prompts: int = 4,
    queue: int = 3,
    longest_prompt: int = 256,
    max_new_tokens: int = 96,
    ignore_eos: bool = False,
    practice: int = 1,
    replay: bool = False,
    costs: Path | None = None,
    rounds: int = 2,
    seed: int = 0,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int = 2,
    cache_tokens: int = 8192,
    markdown: Path | None = None,
) -> int:
    """Measure, print, and write OUTPUT (JSON, anew after every sweep over the workloads) with a picture beside it.

    Args:
        contestants: Names with commas between them; all that can be made where none is given.
        settings: Keys of the speculative config to change, as JSON by contestant, such as
            {"mtp": {"num_speculative_tokens": 2}}; a new name with a method adds a contestant.
        workloads: Names with commas between them.
        prompts_dir: Folder of Spec-Bench-format .jsonl files, whose prompts join our own: the more there are, the
            later one comes again.
        concurrencies: Requests in flight.
        prompts: Least requests of a cell: the fewer there are, the more its ratios say of these prompts alone.
        queue: Requests of a turn for each one in flight. With 1 all begin at once, and the last ones run beside fewer.
        longest_prompt: Tokens beyond which a prompt is left out: reading it would be most of a short request's time.
        ignore_eos: Write on to max_new_tokens past the end of text.
        practice: Rounds before anything is measured, on every fourth prompt of each workload, their cells short.
        replay: After the practice let time pass by what work took in it.
        costs: JSON of an earlier run with --replay, whose costs are replayed.
        cache_tokens: Cache slots of the target, which all contestants share.
        markdown: File for the tables as markdown.
    """
    named, changes = names_in(contestants), changes_in(settings)
    sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=seed, ignore_eos=ignore_eos)
    check(
        names_in(workloads),
        concurrencies,
        temperatures,
        {"--rounds": rounds, "--prompts": prompts, "--queue": queue, "--longest-prompt": longest_prompt},
    )
    whole("--practice", practice, int(replay))
    chosen = settings_of(named, changes, draft_model)
    configs, most = configs_of(chosen), max(concurrencies)
    place = {"dtype": dtype, "device": device, "threads": threads, "cache_tokens": cache_tokens}
    # One target for all: another copy of it may take some hundredths longer, by where its memory lies.
    shared = load_target(target, **place)

    time = replayed_time(shared, costs) if replay or costs else None

    def engine_of(config: SpeculationConfig) -> Engine:
        own = {"speculation": config, "prefix_cache": False, "max_batch": most}
        return ReplayedEngine(shared, time=time, **own) if time else Engine(shared, **own)

    engines, left_out = make_engines(configs, engine_of)
    refuse_named(left_out, [*named, *changes])
    texts = texts_of(engines[PLAIN], names_in(workloads), prompts_dir, longest_prompt, max_new_tokens)
    require_room(engines, texts, sampling, most)
    about = provenance() | place | circumstances(engines[PLAIN], texts)
    about |= {"target": target, "draft_model": draft_model, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
    about |= {"prompts_by_workload": {name: len(its) for name, its in texts.items()}}
    about |= {
        "seed": seed,
        "rounds": rounds,
        "prompts": prompts,
        "queue": queue,
        "longest_prompt": longest_prompt,
        "practice": practice,
        "left_out": left_out,
    }
    about |= {"contestants": {name: chosen[name] for name in engines}}
    cells = sweeps(list(texts), concurrencies, temperatures)
    own = replace(sampling, seed=(seed + PRACTICE_SEEDS) % 2**63)
    least = min(prompts, PRACTICE_REQUESTS)
    turns = take_turns(engines, for_practice(texts), cells, own, rounds=practice, least_requests=least, queue=queue)
    practise(turns, practice * sum(map(len, cells)))
    if time and costs is None:
        time.replay(stored_costs(shared))
    about |= {"replayed": time.record() if time else None}
    settle()  # as a server does: a full collection of garbage takes longer than a cell
    turns = take_turns(engines, for_cells(texts), cells, sampling, rounds=rounds, least_requests=prompts, queue=queue)
    found = follow(turns, cells, rounds, engines, lambda found: write_record(about | found, output))
    show(about | found, output.with_suffix(".svg"), markdown)
    return verdict(found["unlike_plain"], about["dtype"])


def replayed_time(target: Target, costs: Path | None) -> ReplayedTime:
    """A clock for engines over `target`, which replays `costs`, or watches until it is told to replay.

    Raises `ConfigError` where a file holds no costs.
    """
    if costs is None:
        return ReplayedTime(ready_costs(Engine(target), []))
    try:
        time = ReplayedTime.from_record(json.loads(costs.read_bytes())["replayed"])
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise ConfigError(f"--costs is {costs}, where no run with --replay can be read: {error}") from None
    kept_record.store(KIND, time.table.record(), target)  # nobody measures now: others may be at work here
    return time


def check(
    workloads: list[str], concurrencies: tuple[int, ...], temperatures: tuple[float, ...], counts: dict[str, int]
) -> None:
    """Raises `ConfigError` for a workload, concurrency, temperature or count that cannot be."""
    known = list(own_prompts())
    unknown = [name for name in workloads if name not in known]
    require(bool(workloads) and not unknown, f"--workloads has {unknown or 'no name'}; known: {', '.join(known)}")
    require(bool(concurrencies and temperatures), "there is no cell; give at least one concurrency and temperature")
    for values in (workloads, concurrencies, temperatures):
        require(len(set(values)) == len(values), f"{list(values)} names a value twice; give each once")
    for concurrency in concurrencies:
        whole("--concurrencies", concurrency, 1)
    for temperature in temperatures:
        SamplingParams(temperature=temperature)
    for name, count in counts.items():
        whole(name, count, 1)


def texts_of(
    engine: Engine, workloads: list[str], folder: Path | None, longest: int, new: int
) -> dict[str, list[list[int]]]:
    """Prompts of the workloads, none longer than `longest` tokens. Raises `ConfigError` where none leaves room for the
    answer."""
    fitting = token_prompts(engine, collect(workloads, folder), MOST_PROMPTS, new)
    short = {name: [prompt for prompt in its if len(prompt) <= longest] for name, its in fitting.items()}
    texts = {name: its for name, its in short.items() if its}
    require(
        bool(texts),
        f"--max-new-tokens is {new} and --longest-prompt {longest}; prompts must be that short, and with their answers "
        f"fit a context of {engine.target.context_length}",
    )
    return texts


def practise(turns: Iterator[Turn], in_all: int) -> None:
    """Let everybody take `in_all` turns that nobody measures."""
    for _ in track(turns, "practice", total=in_all, console=Console(stderr=True)):
        pass


def for_practice(texts: Mapping[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """Every fourth prompt of each workload, or its only one."""
    return {name: its[PRACTICE_EVERY - 1 :: PRACTICE_EVERY] or its[-1:] for name, its in texts.items()}


def for_cells(texts: Mapping[str, list[list[int]]]) -> dict[str, list[list[int]]]:
    """The other prompts."""
    kept = {name: {*map(tuple, its)} for name, its in for_practice(texts).items()}
    return {name: [prompt for prompt in its if tuple(prompt) not in kept[name]] or its for name, its in texts.items()}


def follow(
    turns, cells: list[list[Cell]], rounds: int, engines: Mapping[str, Engine], keep: Callable[[dict], None]
) -> dict:
    """Take all `turns`; what they say is handed to `keep` after every sweep, and at last returned."""
    done: list[Turn] = []
    reports: list[dict] = []
    in_all = rounds * sum(map(len, cells))
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("turns", total=in_all)
        for turn in turns:
            done.append(turn)
            bar.update(task, advance=1, description=f"round {turn.round + 1}: {turn.cell}")
            if len(done) % len(cells[0]) == 0:
                reports.append(policy_report(engines))
                found = findings(done) | {"complete": len(done) == in_all, "policy_reports": reports}
                keep(found)
    return found


def policy_report(engines: Mapping[str, Engine]) -> dict:
    """What `auto` says of itself; nothing where it does not take part."""
    return engines[AUTO].policy.report() if AUTO in engines else {}


def show(result: dict, picture: Path, markdown: Path | None) -> None:
    """The picture, the tables as markdown where they are wanted, and on the screen with the verdicts."""
    tables = as_markdown(result)
    if not plot(result, picture):
        print("no plot: matplotlib is not installed", file=sys.stderr)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(tables, encoding="utf-8")
    print(tables, *sentences(result), sep="\n")


def verdict(unlike_plain: dict[str, int], dtype: str) -> int:
    """1 where a contestant changed the text in fp32, which rounding does not explain; otherwise 0."""
    changed = {name: count for name, count in unlike_plain.items() if count}
    print(f"requests whose text is not plain decoding's: {changed or 'none'}")
    return int(bool(changed) and dtype == "float32")


def command(arguments: list[str] | None = None) -> int:
    """Run the command line; a mistake is one line and exit code 2."""
    return run_command(app, arguments)


if __name__ == "__main__":
    sys.exit(command())
