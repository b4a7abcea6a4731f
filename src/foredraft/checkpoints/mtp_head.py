"""A multi-token prediction module from tensors under any of its published names."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.checkpoints.head import HeadCheckpoint, Tensors
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import completed, partial_rotation, sizes_of
from foredraft.core.errors import ModelError, require
from foredraft.heads.mtp import MtpConfig

NORMS = ("enorm.weight", "hnorm.weight", "norm.weight")
OURS = {
    *(f"layer.self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")),
    *(f"layer.self_attn.{part}.weight" for part in ("o_proj", "q_norm", "k_norm")),
    *(f"layer.mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
    "layer.input_layernorm.weight",
    "layer.post_attention_layernorm.weight",
}
# Architectures whose RMS norms multiply by one plus what is stored.
NORMS_LESS_ONE = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
FED = {
    True: "the hidden state fed back is the normed one",
    False: "the hidden state fed back is the one before the norm",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpNaming:
    """How one family calls the parts of the module, less its prefix.

    Attributes:
        parts: Published names by ours; what is not among them belongs to the layer.
        layer: What the names of its layer start with.
        hidden_first: Whether the projection reads the hidden state before the embedding.
        shares: Our names of parts that are copies of the target's.
    """

    parts: Mapping[str, str]
    layer: str = ""
    hidden_first: bool = False
    shares: tuple[str, ...] = ()

    def canonical(self, name: str) -> str:
        return self.ours.get(name) or "layer." + name.removeprefix(self.layer)

    @property
    def ours(self) -> dict[str, str]:
        return {published: ours for ours, published in self.parts.items()}

    def published(self, tensors: Tensors, prefix: str) -> Tensors:
        """Our tensors under this family's names; whole embeddings and output layers stand outside the module."""
        outside = {name: tensor for name, tensor in tensors.items() if name in WHOLE}
        inside = {name: tensor for name, tensor in tensors.items() if name not in WHOLE}
        named = {self.parts.get(name, self.layer + name.removeprefix("layer.")): inside[name] for name in inside}
        return {prefix + name: tensor for name, tensor in named.items()} | outside


WHOLE = ("embed_tokens.weight", "lm_head.weight")
DEEPSEEK = MtpNaming(
    parts={
        "enorm.weight": "enorm.weight",
        "hnorm.weight": "hnorm.weight",
        "eh_proj.weight": "eh_proj.weight",
        "norm.weight": "shared_head.norm.weight",
        "lm_head.weight": "shared_head.head.weight",
        "embed_tokens.weight": "embed_tokens.weight",
    },
    shares=WHOLE,
)
QWEN = MtpNaming(
    parts={
        "enorm.weight": "pre_fc_norm_embedding.weight",
        "hnorm.weight": "pre_fc_norm_hidden.weight",
        "eh_proj.weight": "fc.weight",
        "norm.weight": "norm.weight",
    },
    layer="layers.0.",
)
SPECULATORS = MtpNaming(
    parts={
        "enorm.weight": "token_layernorm.weight",
        "hnorm.weight": "hidden_layernorm.weight",
        "eh_proj.weight": "input_proj.weight",
        "norm.weight": "final_layernorm.weight",
    }
)
MIMO = MtpNaming(parts=SPECULATORS.parts, hidden_first=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpSchema:
    """Where one kind of files keeps the module.

    Attributes:
        format: In words.
        naming: Of its tensors.
        prefix: That their names start with.
        layer: The config's values of the decoder layer.
        feed_normed: Whether its engine feeds back the normed hidden state.
    """

    format: str
    naming: MtpNaming
    prefix: str
    layer: dict
    feed_normed: bool


def mtp_head(source: HeadSource, schema: MtpSchema) -> HeadCheckpoint:
    tensors = module_tensors(source, schema)
    kind = schema.layer.get("model_type", "unknown")
    foreign = is_foreign(schema.layer, tensors)
    source.note(foreign, f"its layer is one of {kind}, run by that architecture's own code")
    sizes = sizes_of(source, layer_values(schema.layer, foreign), tensors, layer="layer")
    source.require_width(sizes.hidden_size)
    vocabulary = schema.layer.get("vocab_size") or source.target.vocabulary_rows
    source.require_vocabulary(vocabulary)
    if kind in NORMS_LESS_ONE:
        source.notes.append(f"norms of {kind} are stored less one: 1 is added")
        tensors |= {name: tensor.float() + 1 for name, tensor in tensors.items() if is_norm(name, foreign)}
    config = MtpConfig(
        sizes=sizes,
        vocabulary=vocabulary,
        feed_normed=fed(source, schema),
        own_head="lm_head.weight" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
    )
    return HeadCheckpoint(
        name=source.name,
        method="mtp",
        format=schema.format,
        config=config,
        tensors=tensors,
        notes=tuple(source.notes),
        layer_of=kind if foreign else None,
    )


def module_tensors(source: HeadSource, schema: MtpSchema) -> Tensors:
    """The module's tensors under our names."""
    naming = schema.naming
    ours = {
        n: naming.canonical(n.removeprefix(schema.prefix)) for n in source.files.names if n.startswith(schema.prefix)
    }
    shared = [name for name, own in ours.items() if own in naming.shares]
    source.note(bool(shared), f"{', '.join(shared)}: shared with the target, not read")
    outside = {} if naming.shares else {name: name for name in WHOLE if name in source.files.names and is_alone(source)}
    wanted = {name: own for name, own in (ours | outside).items() if name not in shared}
    tensors = {wanted[name]: tensor for name, tensor in source.files.read(wanted).items()}
    tensors.pop("layer.rotary_emb.inv_freq", None)
    for name in NORMS:
        require(name in tensors, f"tensor {schema.prefix}{naming.parts[name]} missing from the module", ModelError)
    if naming.hidden_first and "eh_proj.weight" in tensors:
        tensors["eh_proj.weight"] = swapped(tensors["eh_proj.weight"])
        source.notes.append("its projection reads the hidden state first: its halves are swapped")
    return tensors


def is_alone(source: HeadSource) -> bool:
    """Whether the folder holds the module only, so that an embedding in it is the module's own."""
    return not any(name.startswith(("model.layers.", "layers.")) for name in source.files.names)


def swapped(weight: Tensor) -> Tensor:
    return torch.cat(list(reversed(weight.chunk(2, dim=1))), dim=1)


def is_foreign(values: dict, tensors: Tensors) -> bool:
    """Whether the layer is of a shape ours is not: other parts, gated queries or half-rotated heads."""
    layer = {name for name in tensors if name.startswith("layer.")}
    if not layer <= OURS or partial_rotation(values) != 1:
        return True
    query, known = tensors.get("layer.self_attn.q_proj.weight"), completed(values)
    size = getattr(known, "head_dim", None) or known.hidden_size // known.num_attention_heads
    return query is not None and len(query) == 2 * known.num_attention_heads * size


def layer_values(values: dict, foreign: bool) -> dict:
    """Config values `LayerSizes` is made of; rotation is the other architecture's own matter where it has one."""
    return {key: value for key, value in values.items() if not (foreign and key in PARTIAL)} | (
        {"rope_parameters": {"rope_theta": 10000.0}} if foreign else {}
    )


PARTIAL = ("partial_rotary_factor", "rope_scaling", "rope_parameters")


def is_norm(name: str, foreign: bool) -> bool:
    """Whether a tensor is a norm that our own code multiplies with."""
    return name in NORMS or (not foreign and "norm" in name)


def fed(source: HeadSource, schema: MtpSchema) -> bool:
    asked = source.reading.feed_normed
    normed = schema.feed_normed if asked is None else asked
    source.notes.append(FED[normed] + ("" if asked is None else ", as asked for"))
    return normed
