"""What drafting asks of a network at feature level, and the answer of networks in torch."""

from typing import Protocol

from torch import Tensor, nn

from foredraft.core.step_plan import StepPlan
from foredraft.heads.draft_loop import DraftLoop
from foredraft.heads.packed_attend import PackedAttend
from foredraft.model.slot_pool import LayerGroup


class FeatureHead(Protocol):
    """A network that drafting at feature level runs over the slot pool, in torch or in the native extension.

    Attributes:
        feature_layers: Boundaries of the target whose hidden states it reads.
        target_ids: Target id of each of its logits, [V_draft]; none where the vocabularies are one.
        path: A line that says what runs it, and why where that is not the extension.
    """

    feature_layers: tuple[int, ...]
    target_ids: Tensor | None
    path: str

    def begin(
        self, plan: StepPlan, features: Tensor, layers: LayerGroup, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run rows that follow captured `features` [T, layers x width].

        Returns:
            Logits of the plan's wanted rows [R, V_draft], what these rows hand on [R, hidden], and what the features
            became for the head, of all rows [T, hidden].
        """

    def run(self, plan: StepPlan, hidden: Tensor, layers: LayerGroup, scale: float) -> tuple[Tensor, Tensor]:
        """As `begin` for rows that follow what other rows have handed on, `hidden` [T, hidden]."""

    def loop(self, layers: LayerGroup) -> DraftLoop | None:
        """What makes whole drafts in one call, where there is such a thing."""


class FeatureNetwork(nn.Module):
    """A `FeatureHead` in torch, which training runs as it is."""

    path = "torch"

    def begin(
        self, plan: StepPlan, features: Tensor, layers: LayerGroup, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.fuse(features)
        return *self.run(plan, hidden, layers, scale), hidden

    def run(self, plan: StepPlan, hidden: Tensor, layers: LayerGroup, scale: float) -> tuple[Tensor, Tensor]:
        attend = PackedAttend(plan, layers, scale)
        out = self(plan.tokens, hidden[None], plan.positions, attend)[0, plan.logit_rows]
        return self.logits(out), self.fed_back(out)

    def loop(self, layers: LayerGroup) -> None:
        return None
