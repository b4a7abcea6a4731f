"""Which ways to draft the policy may choose from, where a config leaves the choice to it."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from foredraft.checkpoints.head_checkpoint import EMBEDDED_HEADS, find_head, holds_head
from foredraft.core.drafter_names import drafter_names
from foredraft.core.errors import require
from foredraft.core.speculation_config import CHAIN_RULES, SpeculationConfig
from foredraft.drafters.drafter import Drafter
from foredraft.engine.running import Option
from foredraft.model.loading import EMBEDDED_DRAFTS
from foredraft.model.target import ModelTarget, Target

Member = tuple[str, str | None]  # method and model
STEPWISE_DEPTHS = (2, 4, 7)  # lengths worth choosing among where each token costs a call of the drafter's network
TREE_NODES, TREE_WIDTH = 16, 3
SUFFIX_FACTOR = 2.0  # the policy cuts suffix drafts by their chances, so they may be long


def options_for(
    config: SpeculationConfig, target: Target, drafter_for: Callable[[SpeculationConfig], Drafter], *, guided: bool
) -> tuple[Option, ...]:
    """Ways to draft by `config`: the one it names, or a portfolio for method auto; what a grammar forces is part of it
    for a request that is `guided` by one.

    Raises `ConfigError`, `ModelError` or `VocabularyError` for a drafter that cannot serve.
    """
    if not config.adaptive:
        return (Option(drafter_for(config), config),)
    options = []
    forced: list[Member] = [("grammar", None)] if guided else []
    for method, model in forced + members(config, target):
        own = replace(config, method=method, model=model, drafters="")
        drafter = drafter_for(own)
        own = own if drafter.needs.prediction else replace(own, prediction=None)
        options += [Option(drafter, setting) for setting in settings(own, config, drafter)]
    return tuple(options)


def most_scratch(config: SpeculationConfig) -> int:
    """Most cache slots that a draft by `config`, or by any way the policy may choose for it, takes while it is made."""
    widest = replace(config, tree_size=config.tree_size or TREE_NODES, tree_width=TREE_WIDTH)
    return widest.scratch_nodes if config.adaptive else config.scratch_nodes


def members(config: SpeculationConfig, target: Target) -> list[Member]:
    """The drafters that `config` names; else those that need no training, its model, and heads made for the target."""
    if config.drafters:
        named = drafter_names(config.drafters)
        complete = all(method for method, _ in named)
        require(complete, "drafters holds an empty name; give method or method:model, with commas between them")
        return named
    expected = [("prediction", None)] if config.prediction is not None else []
    own = [(method_of(config.model, target), config.model)] if config.model else embedded(target)
    return [*expected, ("suffix", None), ("recycling", None), *own]


def method_of(model: str, target: Target) -> str:
    """How to draft with a model: by the method of the head it holds, else as a draft model."""
    if not isinstance(target, ModelTarget):
        return "draft_model"
    place = {"target": target.model.capability, "target_path": target.path}
    return find_head(model, method=None, **place).method if holds_head(model, **place) else "draft_model"


def embedded(target: Target) -> list[Member]:
    """The draft model of an embedded target, and each method it has a head for."""
    methods = dict.fromkeys(method for name, method in EMBEDDED_HEADS.values() if name == target.name)
    draft = EMBEDDED_DRAFTS.get(target.name)
    comparable = draft is not None and isinstance(target, ModelTarget) and target.tokenizer is not None
    return [("draft_model", draft)] * comparable + [(method, None) for method in methods]


def settings(own: SpeculationConfig, limits: SpeculationConfig, drafter: Drafter) -> Iterator[SpeculationConfig]:
    """Lengths and shapes of one drafter within the limits of the config."""
    needs = drafter.needs
    deepest = min(limits.depth, needs.deepest or limits.depth)
    depths = sorted({min(depth, deepest) for depth in STEPWISE_DEPTHS}) if needs.stepwise else [deepest]
    base = replace(own, suffix_decoding_max_spec_factor=max(own.suffix_decoding_max_spec_factor, SUFFIX_FACTOR))
    trees = (needs.fixed_trees or not needs.instant) and limits.rejection_sample_method not in CHAIN_RULES
    if needs.stepwise or not trees:  # else a tree holds the chain, and is cut to what pays
        for depth in depths:
            yield replace(base, num_speculative_tokens=depth, tree_size=0)
    if trees:
        nodes = min(TREE_NODES, limits.tree_size or TREE_NODES)
        yield replace(base, num_speculative_tokens=depths[-1], tree_size=nodes, tree_width=TREE_WIDTH)
