"""The DFlash network as a native program: one section stores the context's keys and values, another runs blocks."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from foredraft.core.step_plan import StepPlan
from foredraft.heads.dflash import DFlashHead
from foredraft.heads.native_layer import layer_parts
from foredraft.heads.native_writer import HeadWriter
from foredraft.model.layer_writer import first_columns, head_norms
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_parts import AttentionPart, LayerPart, embedding_of, norm_part
from foredraft.model.native_run import PlanRunner
from foredraft.model.program_writer import Product, View
from foredraft.model.slot_pool import LayerGroup

STORE, BLOCK = 0, 1  # sections


def write_dflash(program: Any, head: DFlashHead, target: NativeDecoder, weights: str) -> None:
    """Both sections; embedding and output layer are the target's."""
    layers = layer_parts(head.layers)
    writer = HeadWriter(program, layers, head.rotary, weights)
    products = [writer.product(*layer.attention.projections[1:]) for layer in layers]  # to keys and values
    write_context(writer, head, [layer.attention for layer in layers], products)
    program.section(BLOCK)
    writer.embed(writer.hidden, *embedding_of(head.borrowed[0].embed))
    for layer, product in zip(layers, products, strict=True):
        write_block(writer, layer, product)
    writer.borrowed_logits(writer.select_normed(norm_part(head.norm)), target)


def write_context(
    writer: HeadWriter, head: DFlashHead, attentions: Sequence[AttentionPart], products: Sequence[Product]
) -> None:
    """Captured features to keys and values of every layer, by the `products` that make those of blocks too."""
    features = writer.buffer(len(head.config.feature_layers) * head.config.target_hidden_size)
    writer.program.section(STORE)
    writer.program.input(features, 0)
    writer.linear(writer.hidden, features, head.fc)
    writer.norm(writer.hidden, writer.hidden, norm_part(head.hidden_norm))
    for part, product in zip(attentions, products, strict=True):
        context = keys_values(writer, part)
        writer.multiply(context, writer.hidden, product)
        writer.program.store(
            context,
            layer=part.layer,
            kv_heads=part.kv_heads,
            head_size=part.head_size,
            rotary=writer.rotation(part),
            **head_norms(part, queries=False),
        )


def write_block(writer: HeadWriter, layer: LayerPart, product: Product) -> None:
    """A layer whose keys and values come by `product`."""
    part, source = layer.attention, writer.entered(layer.before_attention)
    writer.linear(first_columns(writer.projected, part.queries), source, part.projections[0])
    writer.multiply(keys_values(writer, part), source, product)
    writer.mix(part)
    writer.leave(part.output, writer.mixed, layer.behind_attention, writer.hidden)
    writer.mlp(layer)


def keys_values(writer: HeadWriter, part: AttentionPart) -> View:
    """Where keys and values stand among the projected columns."""
    buffer, start, _ = writer.projected
    return (buffer, start + part.queries, 2 * part.keys)


class NativeDFlash:
    """A DFlash network run by the native extension; it answers as `DFlashHead` does.

    Attributes:
        config, feature_layers: The network's.
        runner: Runs its program.
        path: A line that says what runs it.
    """

    def __init__(self, head: DFlashHead, runner: PlanRunner):
        self.config, self.runner, self.path = head.config, runner, runner.path
        self.feature_layers = head.feature_layers

    def store(self, features: Tensor, plan: StepPlan, layers: LayerGroup) -> None:
        """Context keys and values of the plan's rows, from captured features [T, layers x width]."""
        self.runner(plan, layers, [features], skip=[BLOCK])

    def guess(self, plan: StepPlan, layers: LayerGroup) -> Tensor:
        """Logits of the plan's wanted rows, [R, V], after one run of its blocks."""
        return self.runner(plan, layers, [], skip=[STORE])
