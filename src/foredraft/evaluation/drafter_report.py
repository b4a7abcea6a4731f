"""Drafters against plain decoding: of any engine, and of a drafter that was just trained."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from rich.console import Console

from foredraft.core.errors import PromptError, require
from foredraft.core.sampling_params import SamplingParams, whole
from foredraft.core.speculation_config import CHAIN_RULES, OFF, SpeculationConfig
from foredraft.engine.engine import Engine, Prompt
from foredraft.evaluation.report import Report, all_figures, write_record
from foredraft.evaluation.report_table import report_table
from foredraft.evaluation.turns import PLAIN, Contestant, Progress, Prompts, take_turns

TEMPERATURES = (0.0, 1.0)
REPORT_FILE = "drafter-report.json"
HELD_OUT = "held out"
NGRAM = SpeculationConfig(method="ngram")
PAPER_WIDTH = 110  # of a table that goes to a file
TREE_NODES = 16  # for a drafter whose config asks for a chain


def report_drafters(
    engine: Engine,
    prompts_by_group: Prompts,
    contestants: Mapping[str, SpeculationConfig],
    *,
    temperatures: Sequence[float] = TEMPERATURES,
    max_new_tokens: int = 128,
    seed: int = 0,
    rounds: int = 2,
    ignore_eos: bool = False,
    means: Mapping[str, Sequence[str]] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure `contestants` and plain decoding on prompts of token ids, one request at a time in one engine.

    Prompts come round again with every round, so a suffix drafter should keep no past outputs. In an engine that
    holds several drafters with layers of their own, each also pays for moving the others' cache rows; `measure` takes
    an engine for each contestant.

    Args:
        prompts_by_group: Prompts as token ids, such as code, maths, chat.
        contestants: How to speculate, by name; `plain` joins them as the reference.
        temperatures, max_new_tokens, ignore_eos, seed: How every prompt is written; each turn has a seed of its own.
        rounds: How often every prompt is written at every temperature.
        progress: Called after each turn with the turns done and the turns in all.
        means: Groups that each mean row is over, by its name; all groups where none is given and there are several.

    Raises `PromptError` where a group is empty, `ConfigError` for a value out of range.
    """
    ways = {name: Contestant(engine=engine, config=config) for name, config in contestants.items()}
    plain = {PLAIN: Contestant(engine=engine, config=OFF)}
    sampling = SamplingParams(max_new_tokens=max_new_tokens, seed=seed, ignore_eos=ignore_eos)
    return measure(
        plain | ways,
        prompts_by_group,
        temperatures=temperatures,
        sampling=sampling,
        rounds=rounds,
        means=means,
        progress=progress,
    )


def measure(
    contestants: Mapping[str, Contestant],
    prompts: Prompts,
    *,
    temperatures: Sequence[float],
    sampling: SamplingParams,
    rounds: int,
    means: Mapping[str, Sequence[str]] | None = None,
    progress: Progress | None = None,
) -> Report:
    """As `report_drafters`, each contestant with an engine of its own; `plain` must be among them."""
    means = {"mean": tuple(prompts)} if means is None and len(prompts) > 1 else dict(means or {})
    check(contestants, prompts, temperatures, rounds, means)
    turns = take_turns(
        contestants, prompts, temperatures=temperatures, sampling=sampling, rounds=rounds, progress=progress
    )
    return Report(
        target=contestants[PLAIN].engine.target.name,
        contestants={name: what_is_set(contestant.config) for name, contestant in contestants.items()},
        prompts={group: len(its) for group, its in prompts.items()},
        temperatures=tuple(temperatures),
        rounds=rounds,
        max_new_tokens=sampling.max_new_tokens,
        ignore_eos=sampling.ignore_eos,
        seed=sampling.seed,
        means={name: tuple(groups) for name, groups in means.items()},
        figures=all_figures(turns, list(prompts), temperatures, list(contestants), means),
        turns=tuple(turns),
    )


def check(
    contestants: Mapping[str, Contestant],
    prompts: Prompts,
    temperatures: Sequence[float],
    rounds: int,
    means: Mapping[str, Sequence[str]],
) -> None:
    """Raise before anything runs."""
    require(bool(prompts), "no prompts to measure on; give at least one group", PromptError)
    for group, its in prompts.items():
        require(len(its) > 0, f"group {group!r} has no prompts; give at least one", PromptError)
        require(all(map(len, its)), f"group {group!r} holds a prompt without tokens; give at least one", PromptError)
    require(len(temperatures) > 0, "temperatures is empty; give at least one, such as 0")
    for temperature in temperatures:
        SamplingParams(temperature=temperature)
    whole("rounds", rounds, 1)
    plain = contestants[PLAIN].config
    require(plain == OFF, f"contestant {PLAIN!r} has method {plain.method}; the name is plain decoding's")
    for name, groups in means.items():
        unknown = [group for group in groups if group not in prompts]
        require(not unknown, f"mean {name!r} is over group {unknown[:1]}; there are {', '.join(prompts)}")
        require(len(groups) > 0, f"mean {name!r} is over no group; there are {', '.join(prompts)}")
        require(name not in prompts, f"mean {name!r} has the name of a group; give it another")


def what_is_set(config: SpeculationConfig) -> dict[str, object]:
    """The keys of a config that differ from their defaults, and its method."""
    differing = (f.name for f in fields(config) if getattr(config, f.name) != f.default)
    return {"method": config.method} | {name: getattr(config, name) for name in differing}


def report_drafter(
    target: Engine | str,
    config: SpeculationConfig,
    prompts: Sequence[Prompt] | Mapping[str, Sequence[Prompt]],
    folder: Path | str,
    *,
    max_new_tokens: int = 128,
    rounds: int = 2,
    seed: int = 0,
    console: Console | None = None,
    progress: Progress | None = None,
) -> Report:
    """Measure a new drafter, chain and tree, beside n-gram drafts and plain decoding; print it and save it.

    Args:
        target: The engine, or the name of the model to load. An engine that has drafted with an older head of the same
            name keeps using that one.
        config: The new drafter; as a chain and as a tree, of `TREE_NODES` nodes where it asks for none.
        prompts: Texts or token ids that no drafter was trained on, by group or in one list.
        folder: Where `REPORT_FILE` is written.

    Raises `UserError` kinds.
    """
    engine = Engine.from_pretrained(target, speculation=OFF, max_batch=1) if isinstance(target, str) else target
    groups = prompts if isinstance(prompts, Mapping) else {HELD_OUT: prompts}
    encoded = {group: [engine.encode(prompt) for prompt in its] for group, its in groups.items()}
    report = report_drafters(
        engine,
        encoded,
        {"ngram": NGRAM} | shapes(config),
        max_new_tokens=max_new_tokens,
        rounds=rounds,
        seed=seed,
        progress=progress,
    )
    write_record(report.record(), Path(folder) / REPORT_FILE)
    (console or Console(width=None if Console().is_terminal else PAPER_WIDTH)).print(report_table(report))
    return report


def shapes(config: SpeculationConfig) -> dict[str, SpeculationConfig]:
    """The drafter as a chain, and as a tree where its acceptance rule takes one."""
    chain = replace(config, tree_size=0, speculative_token_tree=None)
    found = {f"{config.method} chain": chain}
    if config.rejection_sample_method not in CHAIN_RULES:
        is_tree = config.tree_size or config.speculative_token_tree
        found[f"{config.method} tree"] = config if is_tree else replace(config, tree_size=TREE_NODES)
    return found
