"""EAGLE heads as native programs."""

from typing import Any

from foredraft.heads.eagle import Eagle3Head, EagleHead
from foredraft.heads.native_layer import LayerWriter, own_layers
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_program import View


def write_eagle(program: Any, head: EagleHead, target: NativeDecoder) -> None:
    """EAGLE-1 and EAGLE-2, whose output layer is the target's."""
    writer = LayerWriter(program, head.config.sizes, head.rotary)
    width = head.config.sizes.hidden_size
    buffer, _, _ = joined = writer.buffer(2 * width)
    writer.embed((buffer, 0, width), head.borrowed[0].embed)
    writer.entry((buffer, width, width))
    writer.linear(writer.hidden, joined, head.fc)
    for layer in own_layers([*head.layers]):
        writer.layer(layer)
    out = writer.select()
    program.output(out)
    writer.borrowed_logits(out, target)


def write_eagle3(program: Any, head: Eagle3Head, target: NativeDecoder) -> None:
    """EAGLE-3 and EAGLE-3.1, whose output layer is their own."""
    config, writer = head.config, LayerWriter(program, head.config.sizes, head.rotary)
    width = config.sizes.hidden_size
    first, *later = own_layers([*head.layers])
    buffer, _, _ = joined = writer.buffer(2 * width)
    embedding, normed = (buffer, 0, width), (buffer, width, width)
    features = writer.buffer(len(config.feature_layers) * config.target_hidden_size)
    writer.entry(writer.hidden, features, lambda: fuse(writer, head, features))
    writer.embed(embedding, head.borrowed[0].embed if head.embed_tokens is None else head.embed_tokens)
    writer.norm(embedding, embedding, first.input_layernorm)
    writer.norm(normed, writer.hidden, first.hidden_norm)
    writer.layer(first, source=joined, residual=normed if config.norm_before_residual else None)
    for layer in later:
        writer.layer(layer)
    final = writer.select(head.norm)
    program.output(final if config.norm_output else writer.last)
    program.logits(final, writer.matrix(head.lm_head))


def fuse(writer: LayerWriter, head: Eagle3Head, features: View) -> None:
    """Captured features of several layers, side by side, to one hidden state."""
    if head.input_norm is not None:
        writer.norm(features, features, head.input_norm)
    width = head.config.target_hidden_size
    for index, norm in enumerate(head.fc_norm or ()):
        part = (features[0], index * width, width)
        writer.norm(part, part, norm)
    writer.linear(writer.hidden, features, head.fc)
