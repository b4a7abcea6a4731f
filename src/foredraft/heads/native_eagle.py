"""EAGLE heads as native programs."""

from typing import Any

from foredraft.heads.eagle import Eagle3Head, EagleHead
from foredraft.heads.native_layer import layer_parts
from foredraft.heads.native_writer import HeadWriter
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_parts import embedding_of, norm_part
from foredraft.model.program_writer import View


def write_eagle(program: Any, head: EagleHead, target: NativeDecoder, weights: str) -> None:
    """EAGLE-1 and EAGLE-2, whose output layer is the target's."""
    layers, width = layer_parts(head.layers), head.config.sizes.hidden_size
    writer = HeadWriter(program, layers, head.rotary, weights)
    buffer, _, _ = joined = writer.buffer(2 * width)
    writer.embed((buffer, 0, width), *embedding_of(head.borrowed[0].embed))
    writer.entry((buffer, width, width))
    writer.linear(writer.hidden, joined, head.fc)
    for layer in layers:
        writer.layer(layer)
    out = writer.select()
    program.output(out)
    writer.borrowed_logits(out, target)


def write_eagle3(program: Any, head: Eagle3Head, target: NativeDecoder, weights: str) -> None:
    """EAGLE-3 and EAGLE-3.1, whose output layer is their own."""
    config, width = head.config, head.config.sizes.hidden_size
    first, *later = layers = layer_parts(head.layers)
    writer = HeadWriter(program, layers, head.rotary, weights)
    buffer, _, _ = joined = writer.buffer(2 * width)
    embedding, normed = (buffer, 0, width), (buffer, width, width)
    features = writer.buffer(len(config.feature_layers) * config.target_hidden_size)
    writer.entry(writer.hidden, features, lambda: fuse(writer, head, features))
    embed = head.borrowed[0].embed if head.embed_tokens is None else head.embed_tokens
    writer.embed(embedding, *embedding_of(embed))
    writer.norm(embedding, embedding, first.before_attention)
    writer.norm(normed, writer.hidden, norm_part(head.layers[0].hidden_norm))
    writer.layer(first, source=joined, residual=normed if config.norm_before_residual else None)
    for layer in later:
        writer.layer(layer)
    final = writer.select_normed(norm_part(head.norm))
    program.output(final if config.norm_output else writer.last)
    program.logits(final, writer.matrix(head.lm_head))


def fuse(writer: HeadWriter, head: Eagle3Head, features: View) -> None:
    """Captured features of several layers, side by side, to one hidden state."""
    if head.input_norm is not None:
        writer.norm(features, features, norm_part(head.input_norm))
    width = head.config.target_hidden_size
    for index, norm in enumerate(head.fc_norm or ()):
        part = (features[0], index * width, width)
        writer.norm(part, part, norm_part(norm))
    writer.linear(writer.hidden, features, head.fc)
