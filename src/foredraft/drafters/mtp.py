"""Native multi-token prediction: drafts by the module some targets were trained with, run once or recursively."""

from dataclasses import replace

from torch import Tensor

from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import register
from foredraft.drafters.feature_drafter import FeatureDrafter, feature_drafter, plain_shapes
from foredraft.drafters.learned import read_head, ready_head
from foredraft.heads.feature_network import FeatureHead
from foredraft.heads.foreign_layer import foreign_layer, stacked_experts
from foredraft.heads.mtp import MtpHead
from foredraft.model.slot_pool import LayerShape
from foredraft.model.target import ModelTarget

LAYER = "layer."


@register("mtp")
def make_mtp(config: SpeculationConfig, target: ModelTarget) -> FeatureDrafter:
    """A drafter over the module inside the target's checkpoint, or the one `config.model` names.

    Raises `ConfigError` or `ModelError`.
    """
    found = read_head(config, target)
    sizes = found.config.sizes
    ready = own_layer if found.layer_of is None else target_layer
    head, shapes = ready(config, found, target)
    return feature_drafter(config, target, head, sizes, shapes=shapes)


def own_layer(
    config: SpeculationConfig, found: HeadCheckpoint, target: ModelTarget
) -> tuple[FeatureHead, dict[int, LayerShape]]:
    """The module and what its layer stores for a token."""
    return ready_head(config, found, target), plain_shapes(found.config.sizes, layers=1)


def target_layer(
    config: SpeculationConfig, found: HeadCheckpoint, target: ModelTarget
) -> tuple[MtpHead, dict[int, LayerShape]]:
    """As `own_layer`, its layer being one of the target's architecture."""
    module = target.model.module
    decoder = module.get_decoder()
    tensors = stacked_experts(found.tensors)
    own = {name.removeprefix(LAYER): tensor for name, tensor in tensors.items() if name.startswith(LAYER)}
    layer = foreign_layer(decoder, module.config.get_text_config(), target.model.capability.windows, own)
    whole = replace(found, tensors=nested(tensors))
    head = ready_head(config, whole, target, layer=layer, rotary=decoder.rotary_emb)
    return head, layer.stored_shapes(decoder.rotary_emb, found.config.sizes.hidden_size)


def nested(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layer's tensors under the names they have one level further down."""
    return {
        name.replace(LAYER, f"{LAYER}inner.", 1) if name.startswith(LAYER) else name: t for name, t in tensors.items()
    }
