"""Attention of a head's rows over the slot pool."""

from dataclasses import dataclass

from torch import Tensor

from foredraft.core.step_plan import StepPlan
from foredraft.model.attending import Attending
from foredraft.model.attention import attend_packed
from foredraft.model.slot_pool import LayerGroup


@dataclass(frozen=True, slots=True)
class PackedAttend:
    """Lets the rows of a plan see the cached keys the plan says, in the head's own layers of the pool.

    Attributes:
        plan: Who sees whom.
        layers: The head's keys and values.
        scale: Factor of the scores.
        window: Positions a row sees back to, itself included; none sees all.
    """

    plan: StepPlan
    layers: LayerGroup
    scale: float
    window: int | None = None

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """From queries [1, H, T, D], keys and values [1, G, T, D] of the rows to their mixed values, [1, T, H D]."""
        attending = Attending(layer=layer, scale=self.scale, window=self.window)
        return attend_packed(query, key, value, attending, self.plan, self.layers).flatten(-2)
