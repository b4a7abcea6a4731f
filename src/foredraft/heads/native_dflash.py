"""The DFlash network as a native program: one section stores the context's keys and values, another runs blocks."""

from typing import Any

from torch import Tensor, nn

from foredraft.core.step_plan import StepPlan
from foredraft.heads.dflash import DFlashHead
from foredraft.heads.layer import HeadAttention
from foredraft.heads.native_layer import LayerWriter, head_norms, own_layers
from foredraft.heads.native_writer import bias_of
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_run import PlanRunner
from foredraft.model.slot_pool import LayerGroup

STORE, BLOCK = 0, 1  # sections


def write_dflash(program: Any, head: DFlashHead, target: NativeDecoder) -> None:
    writer = LayerWriter(program, head.config.sizes, head.rotary)
    layers = own_layers([*head.layers])
    shared = [keys_values(writer, layer.self_attn) for layer in layers]
    write_context(writer, head, shared)
    program.section(BLOCK)
    writer.embed(writer.hidden, head.borrowed[0].embed)
    for layer, (matrix, bias) in zip(layers, shared, strict=True):
        source = writer.entered(layer.input_layernorm)
        writer.linear((writer.projected[0], 0, writer.queries), source, layer.self_attn.q_proj)
        program.linear((writer.projected[0], writer.queries, writer.keys), source, matrix, bias=bias)
        writer.mix(layer.self_attn, layer.index)
        writer.linear(writer.hidden, writer.mixed, layer.self_attn.o_proj, residual=writer.hidden)
        writer.transform(layer)
    writer.borrowed_logits(writer.select(head.norm), target)


def write_context(writer: LayerWriter, head: DFlashHead, shared: list[tuple[int, Tensor | None]]) -> None:
    """Captured features to keys and values of every layer; `shared` makes them in the blocks too."""
    program, config = writer.program, head.config
    features = writer.buffer(len(config.feature_layers) * config.target_hidden_size)
    context = (writer.projected[0], writer.queries, writer.keys)
    program.section(STORE)
    program.input(features, 0)
    writer.linear(writer.hidden, features, head.fc)
    writer.norm(writer.hidden, writer.hidden, head.hidden_norm)
    for layer, (matrix, bias) in zip(head.layers, shared, strict=True):
        program.linear(context, writer.hidden, matrix, bias=bias)
        program.store(
            context,
            layer=layer.index,
            kv_heads=config.sizes.kv_heads,
            head_size=config.sizes.head_dim,
            rotary=writer.rotation,
            **head_norms(layer.self_attn, queries=False),
        )


def keys_values(writer: LayerWriter, attention: HeadAttention) -> tuple[int, Tensor | None]:
    """One matrix to keys and values, and its bias."""
    linears: tuple[nn.Linear, ...] = (attention.k_proj, attention.v_proj)
    return writer.matrix(*linears), bias_of(linears)


class NativeDFlash:
    """A DFlash network run by the native extension; it answers as `DFlashHead` does.

    Attributes:
        config: The network's.
        runner: Runs its program.
    """

    def __init__(self, head: DFlashHead, runner: PlanRunner):
        self.config, self.runner, self.path = head.config, runner, runner.line
        self.feature_layers = head.feature_layers

    def store(self, features: Tensor, plan: StepPlan, layers: LayerGroup) -> None:
        self.runner(plan, layers, [features], skip=[BLOCK])

    def guess(self, plan: StepPlan, layers: LayerGroup) -> Tensor:
        return self.runner(plan, layers, [], skip=[STORE])
