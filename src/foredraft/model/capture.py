"""Takes hidden states out of a transformers module while it runs."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from foredraft.core.errors import ModelError, require
from foredraft.model.features import FINAL_NORM

States = dict[int, Tensor]  # by boundary, or under FINAL_NORM
LAYERS = ("layers", "h")
LAST_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm")


@contextmanager
def capturing(module: nn.Module, wanted: Sequence[int]) -> Iterator[States]:
    """Fill the dictionary given with the hidden states `wanted` of the forward inside, [B, T, hidden] each.

    Raises `ModelError` where the module has no layers or last norm to take them from.
    """
    states: States = {}
    hooks = [hook(module, boundary, states) for boundary in wanted]
    try:
        yield states
    finally:
        for handle in hooks:
            handle.remove()


def hook(module: nn.Module, boundary: int, states: States):
    decoder = module.get_decoder()
    if boundary == FINAL_NORM:
        return decoder.register_forward_hook(lambda _, __, output: states.update({boundary: output[0]}))

    def note(_: nn.Module, args: tuple, options: dict) -> None:
        states[boundary] = args[0] if args else options["hidden_states"]

    return entered(decoder, boundary).register_forward_pre_hook(note, with_kwargs=True)


def require_boundaries(module: nn.Module, wanted: Sequence[int]) -> None:
    """Raise `ModelError` unless the hidden states `wanted` can be taken out of `module`."""
    for boundary in wanted:
        if boundary != FINAL_NORM:
            entered(module.get_decoder(), boundary)


def entered(decoder: nn.Module, boundary: int) -> nn.Module:
    """The part whose input is the residual stream at `boundary`: a layer, or the norm after the last one."""
    layers, norm = first_of(decoder, LAYERS), first_of(decoder, LAST_NORMS)
    name = type(decoder).__name__
    known = layers is not None and norm is not None
    require(known, f"{name} keeps its layers or last norm under other names; no features can be taken", ModelError)
    there = 0 <= boundary <= len(layers)
    require(there, f"feature layer {boundary} is asked for; {name} has boundaries 0 to {len(layers)}", ModelError)
    return norm if boundary == len(layers) else layers[boundary]


def first_of(parent: nn.Module, names: Sequence[str]) -> nn.Module | None:
    return next((part for name in names if (part := getattr(parent, name, None)) is not None), None)
