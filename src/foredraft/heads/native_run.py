"""A head's program run over plans, in the head's own layers of the slot pool."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from foredraft.core.plan_builder import indices
from foredraft.core.step_plan import StepPlan
from foredraft.model.native_decoder import CPU, span
from foredraft.model.native_runtime import Runtime
from foredraft.model.slot_pool import LayerGroup


class PlanRunner:
    """Runs one program.

    Attributes:
        program: The program.
        logits: Columns of its logits.
        dtype: Of all that goes in and out.
        line: Kernels and threads, for people.
    """

    def __init__(self, program: Any, runtime: Runtime, *, logits: int, dtype: torch.dtype):
        self.program, self.runtime, self.logits, self.dtype = program, runtime, logits, dtype
        self.line = f"native path: {runtime.kernels} kernels"
        self.caches: WeakKeyDictionary[LayerGroup, Any] = WeakKeyDictionary()

    def __call__(
        self,
        plan: StepPlan,
        layers: LayerGroup,
        inputs: Sequence[Tensor],
        *,
        skip: list[int],
        output: Tensor | None = None,
        kept: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Logits of the plan's wanted rows, [R, V_draft]; `output` and `kept` are filled.

        The sections `skip` are left out.
        """
        rows, states = plan.logit_rows, kept or {}
        logits = torch.empty(rows.shape[0], self.logits, dtype=self.dtype)
        self.program.run(
            self.cache(layers),
            plan.tokens[0],
            plan.positions[0],
            indices(plan.write, CPU),
            [span(segment) for segment in plan.segments],
            rows,
            list(states),
            list(states.values()),
            logits,
            inputs,
            output,
            skip,
        )
        return logits

    def cache(self, layers: LayerGroup) -> Any:
        """The extension's handle of a group's storage, made once."""
        handle = self.caches.get(layers)
        if handle is None:
            parts = ([part[layer] for layer in sorted(layers.shapes)] for part in (layers.keys, layers.values))
            handle = self.caches[layers] = self.runtime.cache(*parts)
        return handle
