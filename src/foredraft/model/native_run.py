"""A native program run over plans, in layers of the slot pool, or over rows that stand alone.

Shapes: T rows of the plan, R wanted rows, V columns of the program's logits.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from foredraft.core.step_plan import Segment, StepPlan
from foredraft.model.native_runtime import Runtime
from foredraft.model.program_writer import SAME
from foredraft.model.slot_pool import LayerGroup


class PlanRunner:
    """Runs one program.

    Attributes:
        program: The program.
        logits: V.
        dtype: Of all that goes in and out.
        path: A line that says what runs it, with the format of its `weights` where that is not the dtype's.
        nothing: Logits of no rows, [0, V].
        caches: The extension's handle of each group's storage.
    """

    def __init__(self, program: Any, runtime: Runtime, *, logits: int, dtype: torch.dtype, weights: str = SAME):
        self.program, self.runtime, self.logits, self.dtype = program, runtime, logits, dtype
        self.nothing = torch.empty(0, logits, dtype=dtype)
        self.path = f"native path: {runtime.kernels} kernels" + (f", {weights} weights" if weights != SAME else "")
        self.caches: WeakKeyDictionary[LayerGroup, Any] = WeakKeyDictionary()

    def __call__(
        self,
        plan: StepPlan,
        layers: LayerGroup,
        inputs: Sequence[Tensor],
        *,
        skip: Sequence[int],
        output: Tensor | None = None,
        kept: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Logits of the plan's wanted rows, [R, V], or [0, V] where only their tokens are asked for; `output`, `kept`
        and the plan's choice are filled.

        The sections `skip` are left out.
        """
        states, choice = kept or {}, plan.choice
        asked = choice is None or choice.logits
        logits = torch.empty(len(plan.wanted), self.logits, dtype=self.dtype) if asked else self.nothing
        tokens = self.program.run(
            self.cache(layers),
            plan.ids,
            plan.places,
            plan.slots,
            [span(segment) for segment in plan.segments],
            plan.wanted,
            list(states),
            list(states.values()),
            logits if asked else None,
            inputs,
            output,
            skip,
            (choice.divisors, choice.keys) if choice else None,
        )
        if choice:
            choice.tokens = tokens
        return logits

    def alone(self, rows: Tensor, *, skip: Sequence[int] = ()) -> Tensor:
        """Logits [N, V] of hidden states [N, hidden] by sections that neither embed nor attend."""
        count = rows.shape[0]
        logits = torch.empty(count, self.logits, dtype=self.dtype)
        if count:
            nothing, every = [0] * count, list(range(count))
            self.program.run(None, nothing, nothing, nothing, [], every, [], [], logits, [rows], None, skip)
        return logits

    def cache(self, layers: LayerGroup) -> Any:
        """The extension's handle of a group's storage, made once."""
        handle = self.caches.get(layers)
        if handle is None:
            parts = ([part[layer] for layer in sorted(layers.shapes)] for part in (layers.keys, layers.values))
            handle = self.caches[layers] = self.runtime.cache(*parts)
        return handle


def span(segment: Segment) -> tuple:
    """A segment as the extension reads it: start, rows, context, first slot of a run or -1, slots, and which rows see
    which or their parents."""
    keys = segment.keys
    first, slots = (keys.start, None) if isinstance(keys, slice) else (-1, keys)
    tree = segment.parents if segment.ancestors is None else segment.ancestors
    return segment.start, segment.rows, segment.context, first, slots, tree
