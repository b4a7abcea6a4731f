"""What methods that train a head of the target share: how it is kept."""

from pathlib import Path

from torch import nn

from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_writer import write_head
from foredraft.training.methods.method import Findings, Setting


class HeadMethod:
    """A method whose network is one of `heads/`, kept in a published format.

    Attributes:
        kind: The head's name among checkpoints.
        format: What it is written as.
    """

    kind: str
    format = "speculators"
    module: nn.Module
    draft_tokens: int
    learning_rate = 5e-4

    def __init__(self, setting: Setting):
        self.target, self.seed, self.recompute = setting.target, setting.seed, setting.recompute

    @property
    def drafter(self) -> str:
        return self.kind

    def measured(self, findings: Findings) -> None:
        """Most heads store no measurement."""

    def head(self) -> HeadCheckpoint:
        """The head as it is now, in canonical form."""
        return HeadCheckpoint(
            name=self.kind,
            method=self.kind,
            format="as trained",
            config=self.module.config,
            tensors={name: tensor.detach().cpu() for name, tensor in self.module.state_dict().items()},
        )

    def write(self, folder: Path, target_name: str) -> None:
        """Write the head. Raises `UserError` where the format cannot hold it."""
        write_head(
            self.head(),
            folder,
            format=self.format,
            target_name=target_name,
            target_architectures=[self.target.capability.architecture],
            target_layers=self.target.capability.layers,
            speculative_tokens=self.draft_tokens,
        )
