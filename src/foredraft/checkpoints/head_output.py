"""What a writer of a published format is told and what it makes."""

from dataclasses import dataclass

from foredraft.checkpoints.head import Tensors
from foredraft.checkpoints.tensor_files import WEIGHTS_FILE


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadOutput:
    """Facts of the target and of serving that published configs carry.

    Attributes:
        target_name: Of the target, as engines find it.
        target_architectures: Of its config.
        target_layers: Its decoder layers, where they are known.
        speculative_tokens: Drafts a step an engine should make.
    """

    target_name: str
    target_architectures: list[str]
    target_layers: int | None
    speculative_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenForm:
    """A head in a published format, not yet on disk.

    Attributes:
        config: Of its JSON file.
        tensors: Under published names.
        file: That they go into.
        notes: What a user of the format should know.
    """

    config: dict
    tensors: Tensors
    file: str = WEIGHTS_FILE
    notes: tuple[str, ...] = ()
