"""A head at feature level run by the native extension; see `feature_network.py` for what it answers."""

import torch
from torch import Tensor

from foredraft.core.step_plan import StepPlan
from foredraft.heads.draft_loop import DraftLoop
from foredraft.heads.feature_network import FeatureNetwork
from foredraft.heads.native_writer import FEATURES, FUSED, HANDED
from foredraft.model.native_run import PlanRunner
from foredraft.model.slot_pool import LayerGroup


class NativeFeatureHead:
    """A `FeatureHead`.

    Attributes:
        config: The network's.
        runner: Runs its program.
        width: Of hidden states.
    """

    def __init__(self, head: FeatureNetwork, runner: PlanRunner):
        self.config, self.runner, self.path = head.config, runner, runner.path
        self.feature_layers, self.target_ids = head.feature_layers, head.target_ids
        self.width = head.config.sizes.hidden_size

    def begin(
        self, plan: StepPlan, features: Tensor, layers: LayerGroup, scale: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        handed, fused = self.states(len(plan.wanted)), self.states(features.shape[0])
        logits = self.runner(plan, layers, [features], skip=[HANDED], output=handed, kept={FUSED: fused})
        return logits, handed, fused

    def run(self, plan: StepPlan, hidden: Tensor, layers: LayerGroup, scale: float) -> tuple[Tensor, Tensor]:
        handed = self.states(len(plan.wanted))
        return self.runner(plan, layers, [hidden], skip=[FEATURES], output=handed), handed

    def states(self, rows: int) -> Tensor:
        return torch.empty(rows, self.width, dtype=self.runner.dtype)

    def loop(self, layers: LayerGroup) -> DraftLoop:
        runner = self.runner
        return DraftLoop(
            program=runner.program,
            cache=runner.cache(layers),
            first_skip=[HANDED],
            skip=[FEATURES],
            target_ids=self.target_ids,
        )
