"""The protocol every drafter speaks, and the registry that finds one by name."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import require
from foredraft.core.outcome import Verdict
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig, unknown
from foredraft.model.slot_pool import SlotTable
from foredraft.model.target import Target
from foredraft.sampling.request_sampler import RequestSampler


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterNeeds:
    """What a drafter asks of the engine.

    Attributes:
        samples: Whether it can draw drafts from its own law, which probabilistic acceptance rules need.
    """

    samples: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftTask:
    """One request's order for a draft.

    Attributes:
        request: The request; `request.tokens[-1]` is the root.
        sampler: Its sampler, for drafters that choose tokens under the target's own noise.
        table: Its cache slots; `len(table)` committed positions, drafters with own layers take node slots from it.
        nodes: Most nodes the tree may hold, at least 1.
        depth: Longest path it may hold, at least 1.
    """

    request: Request
    sampler: RequestSampler
    table: SlotTable
    nodes: int
    depth: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What became of one request's step, seen after its tokens are committed.

    Attributes:
        request: The request, new tokens included.
        tree: The draft that was verified; empty where there was none.
        verdict: The accepted path and the target's own token.
        committed: Tokens written in this step; fewer than the verdict holds where a stop condition cut it.
    """

    request: Request
    tree: DraftTree
    verdict: Verdict
    committed: list[int]


class Drafter(Protocol):
    """Guesses tokens and learns from what became of them. One object serves every request of an engine."""

    name: str
    needs: DrafterNeeds

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """A tree for each task, empty where there is nothing to guess."""

    def observe(self, observations: list[Observation]) -> None:
        """Learn from one step."""

    def close(self, request: Request) -> None:
        """The request has finished or was cancelled; drop what is kept for it."""


Maker = Callable[[SpeculationConfig, Target], Drafter]
registry: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Make a drafter known under `name`; the decorated callable takes the config and the loaded target."""

    def remember(maker: Maker) -> Maker:
        registry[name] = maker
        return maker

    return remember


BUILT_IN = ("none", "draft_model", "ngram", "suffix")  # each registers itself in the module of its name


def make_drafter(config: SpeculationConfig, target: Target) -> Drafter:
    """The drafter `config.method` names. Raises `ConfigError` for an unknown one."""
    if config.method in BUILT_IN:
        import_module(f"foredraft.drafters.{config.method}")
    require(config.method in registry, unknown("drafter", config.method, {*BUILT_IN, *registry}))
    return registry[config.method](config, target)
