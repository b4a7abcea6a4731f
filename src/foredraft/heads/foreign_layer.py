"""A decoder layer of the target's own architecture inside a head: latent attention, experts, gated queries as they are.

transformers' layer class runs unchanged through our attention function, as it does in the target.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from foredraft.core.errors import ModelError
from foredraft.core.step_plan import StepPlan
from foredraft.model.attention import Ambient, running
from foredraft.model.slot_pool import LayerGroup, LayerShape
from foredraft.model.trial import stored_shapes

EXPERT = re.compile(r"(.*\bexperts)\.(\d+)\.(gate|up|down)_proj\.weight")
PROBE_TOKENS = 16  # their ids do not matter: the probe reads no embedding


class PackedRows(Protocol):
    """What a foreign layer needs to know of an `Attend`: it packs rows over a slot pool, as drafting does."""

    plan: StepPlan
    layers: LayerGroup


class ForeignLayer(nn.Module):
    """Takes the place of `HeadLayer`; training, whose rows are not packed, cannot run it."""

    def __init__(self, inner: nn.Module, windows: Mapping[int, int | None]):
        """`inner` is a decoder layer whose config names our attention function, `windows` those of its model."""
        super().__init__()
        self.inner, self.windows = inner, windows

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: PackedRows) -> Tensor:
        """From residual rows [1, T, hidden] and what the target's own rotary module gives, as `HeadLayer`."""
        plan = attend.plan
        with running(Ambient(plan, attend.layers, self.windows)):
            return self.inner(
                x, attention_mask=None, position_ids=plan.positions, position_embeddings=rotation, past_key_values=None
            )

    @torch.inference_mode()
    def stored_shapes(self, rotary: nn.Module, hidden_size: int) -> dict[int, LayerShape]:
        """What the layer stores for a token, found by running it: keys and values may differ in size."""
        like = next(self.inner.parameters())

        def run(plan: StepPlan, layers: LayerGroup) -> Tensor:
            x = torch.ones(1, plan.tokens.shape[1], hidden_size, dtype=like.dtype, device=like.device)
            return self(x, rotary(x, plan.positions), Ambient(plan, layers, self.windows))

        return stored_shapes(run, PROBE_TOKENS, like.device)


def foreign_layer(
    decoder: nn.Module, config, windows: Mapping[int, int | None], tensors: Mapping[str, Tensor]
) -> ForeignLayer:
    """A layer like the one of `decoder` that has exactly `tensors`, still without weights of its own.

    Raises `ModelError` where no layer has them. The last layers are tried first: a module is most like them.
    """
    wanted = {name: tensor.shape for name, tensor in tensors.items()}
    for index in reversed(range(len(decoder.layers))):
        with torch.device("meta"):  # real ones would be random numbers by the gigabyte
            layer = type(decoder.layers[index])(config, index)
        if {name: tensor.shape for name, tensor in layer.state_dict().items()} == wanted:
            return ForeignLayer(layer, windows)
    name = type(decoder.layers[-1]).__name__
    raise ModelError(f"the module's layer is no {name} of the target: its tensors have other names or shapes")


def stacked_experts(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`tensors` with the experts, published one by one, as transformers holds them: all gates above all ups, [E, ...].

    Experts of which a part is missing stay as they are, for the layer to refuse.
    """
    parts: dict[str, dict[tuple[int, str], Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if match := EXPERT.fullmatch(name):
            parts[match[1]][int(match[2]), match[3]] = tensor
    stacked = dict(tensors)
    for name, own in parts.items():
        count = len(own) // 3
        if own.keys() == {(expert, part) for expert in range(count) for part in ("gate", "up", "down")}:
            stacked = {key: tensor for key, tensor in stacked.items() if not is_expert_of(name, key)}
            both = [torch.cat([own[expert, "gate"], own[expert, "up"]]) for expert in range(count)]
            stacked[f"{name}.gate_up_proj"] = torch.stack(both)
            stacked[f"{name}.down_proj"] = torch.stack([own[expert, "down"] for expert in range(count)])
    return stacked


def is_expert_of(name: str, key: str) -> bool:
    match = EXPERT.fullmatch(key)
    return match is not None and match[1] == name
