"""Medusa heads as a native program: all read one hidden state and write their logits side by side."""

from typing import Any

from torch import Tensor

from foredraft.heads.medusa import MedusaHeads
from foredraft.model.native_run import PlanRunner
from foredraft.model.program_writer import ProgramWriter


def write_medusa(program: Any, heads: MedusaHeads, weights: str) -> None:
    """All heads over the same rows; every row is wanted."""
    writer, config = ProgramWriter(program, weights=weights), heads.config
    hidden, own, inner = (writer.buffer(config.hidden_size) for _ in range(3))
    entered = writer.buffer(config.hidden_size)
    program.input(entered, 0)
    program.select_rows(hidden, entered)
    for index, (blocks, head) in enumerate(zip(heads.blocks, heads.lm_heads, strict=True)):
        x = hidden
        for block in blocks:
            writer.linear(inner, x, block.linear)
            program.activation(inner, inner, "silu")
            program.add(own, x, inner)
            x = own
        program.logits(x, writer.matrix(head), offset=index * config.draft_vocabulary)


class NativeMedusa:
    """Medusa heads run by the native extension; they answer as `MedusaHeads` do.

    Attributes:
        config, feature_layers, target_ids: The heads'.
        runner: Runs their program.
        path: A line that says what runs them.
    """

    def __init__(self, heads: MedusaHeads, runner: PlanRunner):
        self.config, self.runner, self.path = heads.config, runner, runner.path
        self.feature_layers, self.target_ids = heads.feature_layers, heads.target_ids

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits of every head, [heads, N, V_draft], from hidden states after the last norm, [N, hidden]."""
        logits = self.runner.alone(hidden)
        return logits.unflatten(1, (self.config.heads, self.config.draft_vocabulary)).transpose(0, 1)
