"""Which hidden states a head fuses: published layer ids as boundaries, i the input of layer i.

EAGLE's own code and vLLM count boundaries; SGLang, SpecForge and DFlash count layers whose output is taken, one less.
"""

from collections.abc import Sequence

from foredraft.checkpoints.head_source import HeadSource
from foredraft.core.errors import ModelError, require
from foredraft.model.capability import Capability

BOUNDARIES, OUTPUTS = "boundaries", "outputs"
SHIFT = {BOUNDARIES: 0, OUTPUTS: 1}
MEANING = {BOUNDARIES: "boundaries: the inputs of layers", OUTPUTS: "layer outputs: +1"}


def fused_layers(
    source: HeadSource, *, count: int, ids: Sequence[int] | None, convention: str, default: Sequence[int] | None
) -> tuple[int, ...]:
    """The `count` boundaries that enter `fc`: the caller's, else the file's `ids`, else `default`."""
    reading = source.reading
    told = reading.layer_ids is None or ids is not None
    require(told, f"layer_ids {reading.layer_ids} says what ids in its config count, and there are none")
    if reading.feature_layers is not None:
        layers = tuple(reading.feature_layers)
        source.notes.append(f"features of boundaries {shown(layers)} as asked for")
    elif ids is not None:
        convention = reading.layer_ids or convention
        layers = tuple(i + SHIFT[convention] for i in ids)
        source.notes.append(f"layer ids {shown(ids)} read as {MEANING[convention]}")
    else:
        message = f"fc fuses {count} hidden states and its config names no layers; name feature_layers"
        require(default is not None and len(default) == count, message, ModelError)
        layers = tuple(default)
        source.notes.append(f"no layer ids in the config: boundaries {shown(layers)}")
    refuse_strange(layers, count, source.target)
    return layers


def refuse_strange(layers: tuple[int, ...], count: int, target: Capability) -> None:
    named = f"{len(layers)} layers ({shown(layers)}) are named"
    require(len(layers) == count, f"fc fuses {count} hidden states; {named}", ModelError)
    fits = all(0 <= layer <= target.layers for layer in layers)
    message = f"it fuses boundaries {shown(layers)}; the target has {target.layers} layers; name other feature_layers"
    require(fits, message, ModelError)


def inferred_count(weight_shape: Sequence[int], width: int) -> int:
    """How many hidden states of `width` enter `fc`."""
    inputs = weight_shape[1]
    message = (
        f"tensor fc.weight is {list(weight_shape)}; its inputs must be hidden states of the target's width {width}"
    )
    require(inputs % width == 0, message, ModelError)
    return inputs // width


def likely_convention(ids: Sequence[int], target: Capability) -> str:
    """What the ids in an EAGLE layout count, which it leaves open: producers differ."""
    if tuple(ids) == target.feature_layers or target.layers in ids:
        return BOUNDARIES  # the defaults as they are, or an output no layer has
    return OUTPUTS


def shown(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))
