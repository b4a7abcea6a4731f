"""The MTP module with a layer of our own as a native program."""

from typing import Any

from foredraft.heads.mtp import MtpHead
from foredraft.heads.native_layer import layer_parts
from foredraft.heads.native_writer import HeadWriter
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_parts import embedding_of, norm_part


def write_mtp(program: Any, head: MtpHead, target: NativeDecoder, weights: str) -> None:
    """Raises `NotCovered` where the layer is one of the target's architecture."""
    [layer] = layers = layer_parts([head.layer])
    writer, width = HeadWriter(program, layers, head.rotary, weights), head.config.sizes.hidden_size
    buffer, _, _ = joined = writer.buffer(2 * width)
    embedding, handed = (buffer, 0, width), (buffer, width, width)
    embed = head.borrowed[0].embed if head.embed_tokens is None else head.embed_tokens
    writer.embed(embedding, *embedding_of(embed))
    writer.norm(embedding, embedding, norm_part(head.enorm))
    writer.entry(handed)
    writer.norm(handed, handed, norm_part(head.hnorm))
    writer.linear(writer.hidden, joined, head.eh_proj)
    writer.layer(layer)
    final = writer.select_normed(norm_part(head.norm))
    program.output(final if head.config.feed_normed else writer.last)
    if head.lm_head is None:
        writer.borrowed_logits(final, target)
    else:
        program.logits(final, writer.matrix(head.lm_head))
