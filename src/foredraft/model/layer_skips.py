"""Sublayers that a forward leaves out: a model without some of its attentions and MLPs drafts for the whole model.

What is left out adds nothing to the residual stream. Early exit after E layers (LayerSkip, Elhoushi et al. 2024) leaves
out every sublayer from layer E on; leaving out single ones is "draft and verify" (Zhang et al. 2024).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foredraft.core.errors import ModelError, require
from foredraft.model.capture import LAYERS, first_of
from foredraft.model.packed_weights import PackedLinear

ATTENTIONS = ("self_attn", "attn", "attention")
MLPS = ("mlp", "feed_forward", "ffn", "block_sparse_moe")


@dataclass(frozen=True, slots=True)
class LayerSkips:
    """A set of sublayers to leave out: layers without their attention, layers without their MLP, by index."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def after(cls, exit_layer: int, layers: int) -> "LayerSkips":
        """Early exit: everything from layer `exit_layer` on, of `layers`."""
        late = frozenset(range(exit_layer, layers))
        return cls(late, late)

    @classmethod
    def parse(cls, text: str, layers: int) -> "LayerSkips":
        """Read such a list as "attention 3, mlp 5". Raises `ConfigError` naming what is no sublayer of `layers`."""
        sets: dict[str, set[int]] = {"attention": set(), "mlp": set()}
        for part in filter(None, (part.strip() for part in text.split(","))):
            kind, _, index = part.partition(" ")
            known = kind in sets and index.strip().isdecimal()
            require(
                known, f"self_skip holds {part!r}; give sublayers with commas between, such as 'attention 3, mlp 5'"
            )
            inside = int(index) < layers
            require(inside, f"self_skip holds {part!r}; the target has {layers} layers, 0 to {layers - 1}")
            sets[kind].add(int(index))
        return cls(frozenset(sets["attention"]), frozenset(sets["mlp"]))

    def __str__(self) -> str:
        kinds = (("attention", self.attention), ("mlp", self.mlp))
        return ", ".join(f"{kind} {layer}" for kind, layers in kinds for layer in sorted(layers))

    def __or__(self, other: "LayerSkips") -> "LayerSkips":
        return LayerSkips(self.attention | other.attention, self.mlp | other.mlp)

    def __xor__(self, other: "LayerSkips") -> "LayerSkips":
        return LayerSkips(self.attention ^ other.attention, self.mlp ^ other.mlp)

    @property
    def whole(self) -> frozenset[int]:
        """Layers of which nothing runs."""
        return self.attention & self.mlp


NOTHING_SKIPPED = LayerSkips()


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadShares:
    """What each sublayer reads of a model's weights, as a share of all that one forward reads.

    The time of a forward of few rows is about the time its weights take to read. All experts of a mixture count as
    read, so its MLPs look dearer than they are.

    Attributes:
        attention, mlp: Of each layer's sublayers, [layers] each.
        head: Of the vocabulary head, which every forward runs.
    """

    attention: tuple[float, ...]
    mlp: tuple[float, ...]
    head: float

    def of(self, skips: LayerSkips) -> float:
        """Share that a forward without `skips` reads, 0 to 1."""
        attention = sum(share for layer, share in enumerate(self.attention) if layer not in skips.attention)
        return self.head + attention + sum(share for layer, share in enumerate(self.mlp) if layer not in skips.mlp)


@dataclass(frozen=True, slots=True)
class Part:
    """A layer or a sublayer of a transformers module.

    Attributes:
        module: The module.
        values: How many values it returns as a tuple, the hidden states first; none where it returns those alone.
    """

    module: nn.Module
    values: int | None

    def returned(self, hidden: Tensor):
        return hidden if self.values is None else (hidden, *[None] * (self.values - 1))

    def without_effect(self, *args, **options):
        """Stands in for a sublayer: nothing is added to the residual stream."""
        return self.returned(torch.zeros_like(hidden_of(args, options)))

    def passed_by(self, *args, **options):
        """Stands in for a whole layer: the residual stream goes on as it came."""
        return self.returned(hidden_of(args, options))


class SkippableLayers:
    """The layers of a transformers module, any sublayer of which may be left out of a forward.

    Attributes:
        layers, attentions, mlps: Each layer and its two sublayers.
        head: The vocabulary head.
    """

    def __init__(self, module: nn.Module, run: Callable[[], object]):
        """Find the sublayers of `module`; `run` runs it once. Raises `ModelError` where they cannot be found."""
        layers = list(first_of(module.get_decoder(), LAYERS) or ())
        require(
            bool(layers),
            f"{type(module).__name__} keeps its layers under another name; none can be left out",
            ModelError,
        )
        attentions = [sublayer(layer, ATTENTIONS, "attention") for layer in layers]
        mlps = [sublayer(layer, MLPS, "MLP") for layer in layers]
        parts = noted([*layers, *attentions, *mlps], run)
        count = len(layers)
        self.layers, self.attentions, self.mlps = parts[:count], parts[count : 2 * count], parts[2 * count :]
        self.head = module.get_output_embeddings()

    @property
    def shares(self) -> ReadShares:
        numbers = [[weight_numbers(part.module) for part in parts] for parts in (self.attentions, self.mlps)]
        head = weight_numbers(self.head)
        total = sum(numbers[0]) + sum(numbers[1]) + head
        attention, mlp = (tuple(number / total for number in kind) for kind in numbers)
        return ReadShares(attention=attention, mlp=mlp, head=head / total)

    @contextmanager
    def left_out(self, skips: LayerSkips) -> Iterator[None]:
        """Leave `skips` out of the forwards inside; a layer of which nothing runs is passed by whole."""
        with ExitStack() as stack:
            for layer in skips.whole:
                stack.enter_context(swapped(self.layers[layer].module, self.layers[layer].passed_by))
            for parts, layers in ((self.attentions, skips.attention), (self.mlps, skips.mlp)):
                for layer in layers - skips.whole:
                    stack.enter_context(swapped(parts[layer].module, parts[layer].without_effect))
            yield


def sublayer(layer: nn.Module, names: tuple[str, ...], kind: str) -> nn.Module:
    found = first_of(layer, names)
    name = type(layer).__name__
    require(isinstance(found, nn.Module), f"{name} has no {kind} of its own that could be left out", ModelError)
    return found


def noted(modules: list[nn.Module], run: Callable[[], object]) -> list[Part]:
    """How each of `modules` hands back hidden states, seen in one run."""
    seen: dict[nn.Module, int | None] = {}

    def note(module: nn.Module, args: tuple, options: dict, output) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.shape == hidden_of(args, options).shape:
            seen[module] = len(output) if isinstance(output, tuple) else None

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(note, with_kwargs=True).remove)
        run()
    for module in modules:
        name = type(module).__name__
        require(
            module in seen,
            f"{name} takes or returns other things than hidden states; it cannot be left out",
            ModelError,
        )
    return [Part(module, seen[module]) for module in modules]


def hidden_of(args: tuple, options: dict) -> Tensor:
    return args[0] if args else options["hidden_states"]


@contextmanager
def swapped(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Let `module` run `forward` in place of its own."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


def weight_numbers(module: nn.Module) -> int:
    """Numbers in the weights of `module`, packed ones included."""
    packed = (part for part in module.modules() if isinstance(part, PackedLinear))
    return sum(p.numel() for p in module.parameters()) + sum(part.in_features * part.out_features for part in packed)
