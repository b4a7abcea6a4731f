"""The MTP module with a layer of our own as a native program."""

from typing import Any

from foredraft.heads.mtp import MtpHead
from foredraft.heads.native_layer import LayerWriter, own_layers
from foredraft.model.native_decoder import NativeDecoder


def write_mtp(program: Any, head: MtpHead, target: NativeDecoder) -> None:
    """Raises `NotCovered` where the layer is one of the target's architecture."""
    [layer] = own_layers([head.layer])
    writer = LayerWriter(program, head.config.sizes, head.rotary)
    width = head.config.sizes.hidden_size
    buffer, _, _ = joined = writer.buffer(2 * width)
    embedding, handed = (buffer, 0, width), (buffer, width, width)
    writer.embed(embedding, head.borrowed[0].embed if head.embed_tokens is None else head.embed_tokens)
    writer.norm(embedding, embedding, head.enorm)
    writer.entry(handed)
    writer.norm(handed, handed, head.hnorm)
    writer.linear(writer.hidden, joined, head.eh_proj)
    writer.layer(layer)
    final = writer.select(head.norm)
    program.output(final if head.config.feed_normed else writer.last)
    if head.lm_head is None:
        writer.borrowed_logits(final, target)
    else:
        program.logits(final, writer.matrix(head.lm_head))
