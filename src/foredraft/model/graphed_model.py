"""Forwards replayed as captured graphs: where launching a kernel takes longer than running it, one launch is for all.

A plan is laid out on the smallest grid that holds it. The first forward on a grid runs as it is, which also has kernels
made and outputs laid out; the second one is captured; from then on it is replayed.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch import Tensor, nn

from foredraft.core.heap import undisturbed
from foredraft.core.step_plan import StepPlan
from foredraft.model.capability import Capability
from foredraft.model.capture import States
from foredraft.model.grid_plan import GridPlan, GridShape, shape_of
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips
from foredraft.model.slot_pool import LayerGroup

MOST_GRIDS = 256  # of one storage: each keeps a graph, some megabytes
logger = logging.getLogger("foredraft.model")


class Graphs(Protocol):
    """How a device captures work."""

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work`, run without its launches one by one, on whatever its buffers then hold. Runs nothing itself.

        Raises `RuntimeError` for work that cannot be captured.
        """

    def load(self, buffer: Tensor, numbers: np.ndarray) -> None:
        """Copy `numbers`, which may change right after, to `buffer` on the device."""


class CudaGraphs:
    """Graphs of one CUDA device, which share the memory of what they compute in between.

    It is the first one's, which lives as long as this object: torch takes none into memory whose last graph is gone.
    """

    def __init__(self, device: torch.device):
        self.stream = torch.cuda.Stream(device)
        self.first: torch.cuda.CUDAGraph | None = None

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        graph, pool = torch.cuda.CUDAGraph(), self.first.pool() if self.first else None
        # Other threads may ask the device for something meanwhile. A graph that is garbage cannot be freed.
        with undisturbed(), torch.cuda.graph(graph, pool, self.stream, capture_error_mode="thread_local"):
            work()
        self.first = self.first or graph
        return graph.replay

    def load(self, buffer: Tensor, numbers: np.ndarray) -> None:
        """By pinned memory, which torch keeps until the copy is done: nobody waits for it."""
        buffer.copy_(torch.from_numpy(numbers).pin_memory(), non_blocking=True)


class GraphableModel(Protocol):
    """What devices need of a packed model, as of `PackedModel`."""

    module: nn.Module
    capability: Capability

    def run_module(
        self,
        plan: StepPlan | GridPlan,
        layers: LayerGroup,
        features: Sequence[int] = (),
        skips: LayerSkips = NOTHING_SKIPPED,
        attend: Callable | None = None,
    ) -> tuple[Tensor, States]:
        """Logits of the wanted rows and hidden states by the module without `skips`, attending by `attend`."""


Outputs = dict[int | None, Tensor]
"""Hidden states by boundary and, by none, logits."""


@dataclass(eq=False, slots=True)
class Recording:
    """One forward on one grid.

    Attributes:
        plan: The grid.
        features: Boundaries whose hidden states are wanted.
        work: Runs the forward, into `outputs`.
        outputs: Logits and hidden states of the last run on as many rows, every row of the grid.
        ran: Whether it has run.
        run: Runs it as fast as can be; none before it has run.
    """

    plan: GridPlan
    features: tuple[int, ...]
    work: Callable[[], None]
    outputs: Outputs
    ran: bool = False
    run: Callable[[], None] | None = None


Kind = tuple[GridShape, tuple[int, ...], LayerSkips]


@dataclass(eq=False, slots=True)
class Shelf:
    """What was run on one storage, and who captures it: graphs and their memory go with the storage.

    Attributes:
        graphs: Captures.
        recordings: Forwards.
        outputs: Those of all forwards of so many rows: what is handed out is a copy.
    """

    graphs: Graphs
    recordings: dict[Kind, Recording] = field(default_factory=dict)
    outputs: dict[int, Outputs] = field(default_factory=dict)


class GraphedModel:
    """Runs a model's forwards over plans that fit a grid as graphs, all others as they are.

    Attributes:
        model: The model.
        make_graphs: Makes what captures for one storage.
        shelves: What was run, by the storage it reads and writes.
        proven: Whether any forward has been captured.
    """

    note = "few rows run as captured graphs"

    def __init__(self, model: GraphableModel, make_graphs: Callable[[], Graphs]):
        self.model, self.make_graphs = model, make_graphs
        self.shelves: WeakKeyDictionary[LayerGroup, Shelf] = WeakKeyDictionary()
        self.proven = False

    def __call__(
        self, plan: StepPlan, layers: LayerGroup, features: Sequence[int] = (), skips: LayerSkips = NOTHING_SKIPPED
    ) -> tuple[Tensor, States]:
        """Logits of the plan's wanted rows, [R, V], and the hidden states `features` of all rows, [T, hidden] each.

        Raises `RuntimeError` for a model of which nothing can be captured.
        """
        shape = shape_of(plan)
        if layers not in self.shelves:
            self.shelves[layers] = Shelf(self.make_graphs())
        shelf, kind = self.shelves[layers], (shape, tuple(features), skips)
        known = shelf.recordings
        if shape is None or (kind not in known and len(known) >= MOST_GRIDS):
            return self.model.run_module(plan, layers, features, skips)
        if kind not in known:
            known[kind] = self.recording(kind, layers, shelf.outputs.setdefault(shape.size, {}))
        return self.replayed(known[kind], plan, shelf.graphs)

    def recording(self, kind: Kind, layers: LayerGroup, outputs: Outputs) -> Recording:
        shape, features, skips = kind
        grid, storage = GridPlan(shape, layers.spare, layers.device), ref(layers)  # which may go before its graphs

        def work() -> None:
            grid.bunches.clear()
            logits, states = self.model.run_module(grid, storage(), features, skips, grid.attend)
            for name, fresh in {None: logits, **states}.items():
                kept = outputs.setdefault(name, fresh)
                if kept is not fresh:
                    kept.copy_(fresh)

        return Recording(grid, features, work, outputs)

    @torch.inference_mode()
    def replayed(self, recording: Recording, plan: StepPlan, graphs: Graphs) -> tuple[Tensor, States]:
        """Run `recording` on `plan`; what is handed out stays when it runs again."""
        grid, outputs = recording.plan, recording.outputs
        numbers, sees = grid.staged(plan)
        graphs.load(grid.numbers, numbers)
        graphs.load(grid.sees, sees)
        for place, slots in grid.scattered(plan):
            place.copy_(slots)
        if recording.ran:
            recording.run = recording.run or self.captured(recording, graphs)
            recording.run()
        else:
            recording.work()
            recording.ran = True
        states = {at: outputs[at][: len(plan.ids)].clone() for at in recording.features}
        return outputs[None][: len(plan.wanted)].clone(), states

    def captured(self, recording: Recording, graphs: Graphs) -> Callable[[], None]:
        """Its work as a graph, or itself where that fails though it went well before, which the log says."""
        try:
            graph = graphs.captured(recording.work)
        except RuntimeError as error:
            if not self.proven:
                raise
            logger.warning("a forward of %s runs without a graph: %s", recording.plan.shape, str(error).split("\n")[0])
            return recording.work
        self.proven = True
        return graph
