"""A drafter's head in canonical form, and what its reader may be told."""

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from foredraft.core.errors import require
from foredraft.core.speculation_config import one_of
from foredraft.heads.dflash import DFlashConfig
from foredraft.heads.eagle import Eagle3Config, EagleConfig
from foredraft.heads.medusa import MedusaConfig
from foredraft.heads.mtp import MtpConfig

HeadConfig: TypeAlias = EagleConfig | Eagle3Config | MedusaConfig | MtpConfig | DFlashConfig
Tensors: TypeAlias = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadCheckpoint:
    """A head as it was read.

    Attributes:
        name: As given.
        method: eagle (both EAGLE-1 and EAGLE-2), eagle3, medusa, mtp or dflash.
        format: Of its files, in words.
        config: Of its network in `heads/`.
        tensors: Under the names of that network's state dict, in the dtypes they were stored in.
        notes: What was decided while reading.
        layer_of: The model type whose decoder layer the tensors `layer.*` are, under that architecture's own names;
            none where the layer is our own.
    """

    name: str
    method: str
    format: str
    config: HeadConfig
    tensors: Tensors
    notes: tuple[str, ...] = ()
    layer_of: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadReading:
    """How to read what published files leave open; none follows the file.

    Attributes:
        feature_layers: Boundaries an EAGLE-3 or DFlash head fuses, in place of its file's layer ids: i is the input of
            layer i.
        layer_ids: What the layer ids in the file count: boundaries (vLLM) or outputs (SGLang), one less.
        norm_before_residual: Whether an EAGLE-3 head's residual is the normed hidden state.
        norm_output: Whether an EAGLE-3 head feeds back its normed output; some files say so and do not.
        feed_normed: Whether an MTP module feeds back its normed output; engines differ.
        rope_theta: Base of the head's rotary embedding.
    """

    feature_layers: tuple[int, ...] | None = None
    layer_ids: str | None = None
    norm_before_residual: bool | None = None
    norm_output: bool | None = None
    feed_normed: bool | None = None
    rope_theta: float | None = None

    def __post_init__(self) -> None:
        both = self.layer_ids is not None and self.feature_layers is not None
        require(not both, "feature_layers stand in place of the file's layer ids: give no layer_ids beside them")
        if self.layer_ids is not None:
            one_of("layer_ids", self.layer_ids, ("boundaries", "outputs"))
