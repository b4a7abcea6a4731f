"""The protocol every drafter speaks, and the registry that finds one by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import require
from foredraft.core.outcome import Verdict
from foredraft.core.request import Request
from foredraft.core.speculation_config import AUTO, SpeculationConfig, unknown
from foredraft.drafters.growth import FREE, Growth
from foredraft.drafters.prefix_state import PrefixState
from foredraft.model.slot_pool import SlotTable
from foredraft.model.target import Target
from foredraft.sampling.request_sampler import RequestSampler


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterNeeds:
    """What a drafter asks of the engine.

    Attributes:
        samples: Whether it can draw drafts from its own law, which probabilistic acceptance rules need.
        features: Hidden states of the target it wants with every observation: boundaries as in `model/features.py`.
        scratch: Cache slots a draft takes while it is made, beside those `SpeculationConfig.scratch_nodes` counts.
        fixed_trees: Whether it drafts the tree that `SpeculationConfig.speculative_token_tree` gives.
        successors: How many of the target's likeliest next tokens it wants to be told after every row of a step.
        instant: Whether a draft costs next to nothing beside a forward of the target, so that a policy may ask for one
            before it decides.
        trims: Whether a draft leaves out by itself, beside what its config says, what `DraftTask.growth` says is not
            worth a row.
        stepwise: Whether each further token of a draft costs another call of its network, so that length is a choice.
        deepest: Longest draft it can make, where it has such a limit.
        prediction: Whether it drafts from `SpeculationConfig.prediction`.
        drafters: Whether it asks the drafters that `SpeculationConfig.drafters` names; they are its `parts`.
        resumes: Whether it goes on from what it knew of another request's text where a request begins with the same
            one: it is a `ResumingDrafter`.
        gapless: Positions, from a text's first on, of which it must have been told each before it can draft. A request
            takes over no more of a cached text than such a drafter knows of it.
        told: Whether it learns from what becomes of a step; else nobody tells it.
        slotted: Whether it is told only of steps whose draft came with cache slots: it learns what became of those.
        drafts: Whether it ever has a draft; else nobody asks.
    """

    samples: bool = False
    features: tuple[int, ...] = ()
    scratch: int = 0
    fixed_trees: bool = False
    successors: int = 0
    instant: bool = False
    trims: bool = False
    stepwise: bool = False
    deepest: int | None = None
    prediction: bool = False
    drafters: bool = False
    resumes: bool = False
    gapless: int = 0
    told: bool = True
    slotted: bool = False
    drafts: bool = True


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for every request and draft
class DraftTask:
    """One request's order for a draft.

    Attributes:
        request: The request; `request.tokens[-1]` is the root.
        speculation: How to draft in this step: the request's own config, or what a policy has made of it.
        sampler: Its sampler, for drafters that choose tokens under the target's own noise.
        table: Its cache slots; `len(table)` committed positions, drafters with own layers take node slots from it.
        nodes: Most nodes the tree may hold, at least 1.
        depth: Longest path it may hold, at least 1.
        growth: When a draft that grows level by level, or trims itself, and is not sampled, ends.
    """

    request: Request
    speculation: SpeculationConfig
    sampler: RequestSampler
    table: SlotTable
    nodes: int
    depth: int
    growth: Growth = FREE


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for every request and drafter of a step
class Observation:
    """What became of one request's step, seen after its tokens are committed.

    Attributes:
        request: The request, new tokens included.
        table: Its cache slots, those of the step's kept rows included.
        first: Position of the first row the step kept: its pending tokens, then the accepted path.
        tree: The draft of the step, probes included, whoever made it; empty where there was none. A drafter that serves
            beside others also sees theirs.
        verdict: The accepted path and the target's own token; none for a chunk of the prompt that is not its last.
        committed: Tokens written in this step; fewer than the verdict holds where a stop condition cut it.
        features: The hidden states the drafter needs of the rows kept, [rows, hidden] each, in the order of its needs.
        successors: The target's likeliest next tokens after the root and after each node of the tree, likeliest first,
            [N + 1, needs.successors], by its raw logits; none where it wants none or for a chunk of the prompt.
    """

    request: Request
    table: SlotTable
    first: int
    tree: DraftTree
    verdict: Verdict | None
    committed: list[int]
    features: tuple[Tensor, ...] = ()
    successors: list[list[int]] | None = None

    @property
    def path(self) -> list[int]:
        """Accepted nodes of the tree."""
        return self.verdict.path if self.verdict else []


class Drafter(Protocol):
    """Guesses tokens and learns from what became of them. One object serves every request of an engine."""

    name: str
    needs: DrafterNeeds

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """A tree for each task, empty where there is nothing to guess."""

    def observe(self, observations: list[Observation]) -> None:
        """Learn from one step."""

    def close(self, request: Request) -> None:
        """Drop what is kept for a request that has finished, was cancelled or has lost its cache slots.

        After a loss it may come again: the same text is then computed anew, and observed from its first token on.
        """


class ResumingDrafter(Drafter, Protocol):
    """Knows something of a text's positions that outlives the request: rows in layers of its own, under the target's
    slots, or features that wait to become such rows.

    What it knows of a position may depend on the tokens up to the one right after it, and on nothing later.
    """

    def leave(self, request: Request, length: int) -> PrefixState:
        """What is known of the first `length` positions; the request may go on afterwards."""

    def resume(self, request: Request, state: PrefixState) -> None:
        """Start over with `state` as all that is known of the request's first positions."""


def resuming(drafters: Iterable[Drafter]) -> list[ResumingDrafter]:
    """Those of `drafters`, parts of combinations included, that go on from an earlier request's text."""
    asked = [*drafters]
    parts = [part.drafter for drafter in asked if drafter.needs.drafters for part in drafter.parts]
    return [drafter for drafter in (*asked, *parts) if drafter.needs.resumes]


Maker = Callable[[SpeculationConfig, Target], Drafter]
registry: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Make a drafter known under `name`; the decorated callable takes the config and the loaded target."""

    def remember(maker: Maker) -> Maker:
        registry[name] = maker
        return maker

    return remember


BUILT_IN = {  # where each registers itself
    "none": "none",
    "draft_model": "draft_model",
    "ngram": "ngram",
    "suffix": "suffix",
    "eagle": "eagle",
    "eagle3": "eagle",
    "mtp": "mtp",
    "medusa": "medusa",
    "dflash": "dflash",
    "cascade": "cascade",
    "merged": "merged",
    "grammar": "grammar",
    "self_speculation": "self_speculation",
    "lookahead": "lookahead",
    "recycling": "recycling",
    "prediction": "prediction",
}


def make_drafter(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter `config.method` names. Raises `ConfigError` for an unknown one, and for auto among others."""
    if config.method in BUILT_IN:
        import_module(f"foredraft.drafters.{BUILT_IN[config.method]}")
    require(config.method != AUTO, "drafter 'auto' chooses among others and cannot be one of them; name methods")
    require(config.method in registry, unknown("drafter", config.method, {AUTO, *BUILT_IN, *registry}))
    return registry[config.method](config, target)
