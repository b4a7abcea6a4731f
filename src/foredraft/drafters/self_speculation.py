"""Drafting by the target's own weights with some sublayers left out: early exit and layer skipping.

A draft shares the target's cache. The layers it runs read the committed positions' own keys and values, and store those
of the root and of the drafted nodes, which are only near the true ones. Nothing of them stays: the target's forward
writes the root's and every verified node's slots anew in all layers, and the other slots are freed after the step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import require
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.slots import compact
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.draft_model import DraftModelDrafter, loop_of
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.skip_search import KeptSearch, SkipSearch
from foredraft.model.layer_skips import LayerSkips
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

WINDOW = 32  # most written tokens a set is measured on, and so the scratch slots of a measurement
SMALLEST_WINDOW = 16
WINDOW_USES = 16  # measurements before a window makes room for a later one


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Tokens of one request that the target wrote, in blocks as long as a draft.

    Attributes:
        request: Id of the request.
        first: Position of the first row; each row is to predict the token after its own.
        depth: Rows of a block.
        blocks: Number of blocks.
    """

    request: int
    first: int
    depth: int
    blocks: int

    @classmethod
    def latest(cls, task: DraftTask) -> "Window | None":
        """The last tokens the request has written, none where they are too few to tell sets apart."""
        request, depth = task.request, min(task.speculation.depth, WINDOW)
        written = request.computed + 1 - len(request.prompt)
        blocks = min(written, WINDOW) // depth
        if blocks * depth < SMALLEST_WINDOW:
            return None
        return cls(request=request.id, first=request.computed - blocks * depth, depth=depth, blocks=blocks)

    @property
    def rows(self) -> int:
        return self.blocks * self.depth


class SkipMeasurement:
    """Measures one candidate of a search a step, on tokens that running requests have written.

    Each block is drafted as a chain would be: exact keys and values up to its start, the candidate's own after it, in
    scratch slots. A token is found where the row before it has it as its likeliest.

    Attributes:
        model, pool: The target and its cache.
        search: Whom to measure for.
        kept: Where its results stay; none keeps them in memory alone.
        clock: Seconds that pass, to count what measuring takes.
    """

    def __init__(
        self,
        model: PackedModel,
        pool: SlotPool,
        search: SkipSearch,
        kept: KeptSearch | None = None,
        clock: Callable[[], float] = perf_counter,
    ):
        self.model, self.pool, self.search, self.kept, self.clock = model, pool, search, kept, clock
        self.window: Window | None = None
        self.uses = 0

    def step(self, tasks: list[DraftTask]) -> None:
        """Measure one candidate where the search still wants it and some task's request has written enough."""
        if self.search.finished:
            return
        task = self.task_with_window(tasks)
        if task is None:
            return
        start, skips = self.clock(), self.search.candidate()
        if skips is None:
            self.window = None
            return
        found = self.found(task, skips)
        self.uses += 1
        better = self.search.tell(skips, found, self.window.rows, self.clock() - start)
        if self.kept is not None and (better or self.search.finished):
            self.kept.save(self.search)

    def task_with_window(self, tasks: list[DraftTask]) -> DraftTask | None:
        """The task whose request the window belongs to, or another with a new window; none where nobody has one."""
        current = self.window if self.uses < WINDOW_USES else None
        for task in tasks:
            if current is not None and current.request == task.request.id:
                return task
        for task in tasks:
            if (window := Window.latest(task)) is not None:
                self.window, self.uses = window, 0
                self.search.begin_window(window.depth)
                return task
        return None

    def found(self, task: DraftTask, skips: LayerSkips) -> int:
        """How many of the window's tokens the target without `skips` finds likeliest."""
        window, tokens = self.window, task.request.tokens
        plan = build_plan(self.blocks(task), self.pool.device)
        logits = self.model.forward_skipping(plan, skips)[:, : task.sampler.vocabulary.size]
        written = tokens[window.first + 1 : window.first + 1 + window.rows]
        return sum(a == b for a, b in zip(logits.argmax(-1).tolist(), written, strict=True))

    def blocks(self, task: DraftTask) -> list[Rows]:
        """The window's rows; their slots stay in the table's tail, which the engine frees after the step."""
        window, committed = self.window, task.table.slots
        scratch = self.pool.take(task.table, window.rows)
        return [
            Rows(
                tokens=task.request.tokens[start : start + window.depth],
                pending=window.depth,
                parents=[],
                slots=scratch[start - window.first : start - window.first + window.depth],
                context=start,
                context_slots=compact(committed[:start], self.pool.device) if start else slice(0, 0),
                logits=window.depth,
            )
            for start in range(window.first, window.first + window.rows, window.depth)
        ]


class SelfSpeculationDrafter(DraftModelDrafter):
    """Drafts with the target less some sublayers, as a draft model that has the target's cache for its own.

    Attributes:
        given: Sublayers to leave out where they were given; none where they are searched for.
        measurement: The search for them.
    """

    name = "self_speculation"

    def __init__(
        self,
        model: PackedModel,
        pool: SlotPool,
        *,
        given: LayerSkips | None = None,
        measurement: SkipMeasurement | None = None,
    ):
        assert (given is None) != (measurement is None)
        super().__init__(model, pool, context_length=model.capability.context_length)
        self.given, self.measurement = given, measurement
        self.needs = DrafterNeeds(samples=True, stepwise=True, scratch=WINDOW if measurement else 0, told=False)

    @property
    def skips(self) -> LayerSkips:
        """Sublayers that the next draft leaves out."""
        return self.given if self.given is not None else self.measurement.search.best

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees for requests of which only the root is pending: other tokens of a prompt's end have no keys yet."""
        ready = [task for task in tasks if task.request.pending == 1]
        for task in ready:
            self.filled[task.request.id] = task.request.computed
        self.loop = loop_of(self.model, self.skips)
        trees = iter(super().propose(ready))
        drafts = [next(trees) if task.request.pending == 1 else DraftTree() for task in tasks]
        if self.measurement is not None:
            self.measurement.step(ready)
        return drafts

    def forward(self, rows: list[Rows]) -> Tensor:
        return self.model.forward_skipping(build_plan(rows, self.pool.device), self.skips)

    def observe(self, observations: list[Observation]) -> None:
        """Nothing to learn: the target's forward has filled the cache."""


@register("self_speculation")
def make_self_speculation(config: SpeculationConfig, target: ModelTarget) -> SelfSpeculationDrafter:
    """A drafter over `target` itself.

    Raises `ConfigError` for layers that `target` has not, `ModelError` where its sublayers cannot be found.
    """
    require(isinstance(target, ModelTarget), f"{target.name} is no loaded model; it has no layers to leave out")
    model, layers = target.model, len(target.model.skippable.layers)
    given = LayerSkips.parse(config.self_skip, layers) | exit_skips(config.self_exit_layer, layers)
    if given != LayerSkips():
        return SelfSpeculationDrafter(model, target.pool, given=given)
    search = SkipSearch(model.skippable.shares, seconds=config.self_search_seconds)
    kept = KeptSearch(target.path, model.weight_bytes, layers) if target.path is not None else None
    if kept is not None:
        kept.load(search)
    return SelfSpeculationDrafter(model, target.pool, measurement=SkipMeasurement(model, target.pool, search, kept))


def exit_skips(exit_layer: int, layers: int) -> LayerSkips:
    """What an early exit leaves out, nothing for 0. Raises `ConfigError` where `layers` has no such exit."""
    require(
        exit_layer < layers,
        f"self_exit_layer is {exit_layer}; the target has {layers} layers, so 1 to {layers - 1} or 0 for none",
    )
    return LayerSkips.after(exit_layer, layers) if exit_layer else LayerSkips()
