"""Reads a transformers module as the parts the native path computes, or says which part it does not know.

Covers decoders of attention and a gated MLP with RMS norms before, behind, or on both sides of each, of the classes
named here: what their modules do not show, such as a scale in the class's own code, has been read in that code. Which
way a norm rounds, whether it adds one to its weight, and what an activation is, is found by trying.

Shapes: H query heads, G key-value heads, D head size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

from foredraft.model.decoder import HEAD_NORMS, MODEL_PARTS, parts
from foredraft.model.native_runtime import NotCovered

COVERED = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Phi3ForCausalLM",
    "SmolLM3ForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "GemmaForCausalLM",
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
}
SOFT_SCORES = {"Gemma2ForCausalLM"}  # Gemma 3 carries such a bound in its config and does not read it
SOFT_LOGITS = {"Gemma2ForCausalLM", "Gemma3ForCausalLM"}
STATIC_ROTATIONS = {"default", "linear", "llama3", "yarn"}  # others change their frequencies with the text's length
BEFORE, BEHIND = "input_layernorm", "post_attention_layernorm"
BEFORE_MLP, BEHIND_MLP = "pre_feedforward_layernorm", "post_feedforward_layernorm"
NORM_PLACES = {  # before the attention, behind it, before the MLP, behind it
    frozenset({BEFORE, BEHIND}): (BEFORE, None, BEHIND, None),
    frozenset({BEHIND, BEHIND_MLP}): (None, BEHIND, None, BEHIND_MLP),
    frozenset({BEFORE, BEHIND, BEFORE_MLP, BEHIND_MLP}): (BEFORE, BEHIND, BEFORE_MLP, BEHIND_MLP),
}
ATTENTION_LINEARS = ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"qkv_proj", "o_proj"})
MLP_LINEARS = ({"gate_proj", "up_proj", "down_proj"}, {"gate_up_proj", "down_proj"})
ACTIVATIONS = {"silu": silu, "gelu": gelu, "gelu_tanh": lambda x: gelu(x, approximate="tanh")}


class StrangePart(Exception):
    """A part of a module that has not been understood, in a few words."""


@dataclass(frozen=True, slots=True)
class NormPart:
    """RMS norm. `weight` is fp32 and holds the one that Gemma adds; `wide`: rounded once, after the weight."""

    weight: Tensor
    eps: float
    wide: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionPart:
    """One attention.

    Attributes:
        projections: To queries, keys and values: one linear each, or one for all.
        query_norm, key_norm: Of each head, [D], or of all heads together, [H D] and [G D].
        rotation: Key of its rotary frequencies in `ModelParts.rotations`; none where it does not rotate.
        window, softcap: None where there is no such bound.
    """

    layer: int
    projections: list[nn.Linear]
    output: nn.Linear
    query_norm: NormPart | None
    key_norm: NormPart | None
    heads: int
    kv_heads: int
    head_size: int
    scale: float
    window: int | None
    softcap: float | None
    rotation: str | None

    @property
    def queries(self) -> int:
        """Columns of the queries."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Columns of the keys; the values have as many."""
        return self.kv_heads * self.head_size

    @property
    def normed_whole(self) -> bool:
        """Whether queries and keys are normed before they are split into heads."""
        if self.query_norm is None:
            return False
        return (len(self.query_norm.weight), len(self.key_norm.weight)) == (self.queries, self.keys)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatedPart:
    """`down(act(gate x) * up x)`; `lead` is gate and up, or one linear for both."""

    lead: list[nn.Linear]
    down: nn.Linear
    activation: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerPart:
    """One layer: norms stand where they are not none."""

    attention: AttentionPart
    mlp: GatedPart
    before_attention: NormPart | None
    behind_attention: NormPart | None
    before_mlp: NormPart | None
    behind_mlp: NormPart | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParts:
    """A whole model.

    Attributes:
        embedding_scale: Factor of the embeddings.
        rotations: Inverse frequencies, [d / 2] fp32, and factor of sines and cosines, by kind of layer.
        softcap: Bound of the logits, none where there is none.
    """

    embedding: nn.Embedding
    embedding_scale: float
    layers: list[LayerPart]
    norm: NormPart
    head: nn.Linear
    rotations: dict[str, tuple[Tensor, float]]
    softcap: float | None


def parts_of(module: nn.Module, windows: dict[int, int | None]) -> ModelParts:
    """The parts of `module`, whose layers have `windows` by config. Raises `NotCovered` with the first strange one."""
    name = type(module).__name__
    if name not in COVERED or not type(module).__module__.startswith("transformers."):
        raise NotCovered(f"native kernels do not cover {name}")
    try:
        return covered_parts(module, windows, name)
    except StrangePart as part:
        raise NotCovered(f"native kernels do not cover {name} with {part}") from None


def covered_parts(module: nn.Module, windows: dict[int, int | None], name: str) -> ModelParts:
    base = module.model
    expect(parts(module) == {"model", "lm_head"} and parts(base) == MODEL_PARTS, "such parts")
    embedding, scale = embedding_of(base.embed_tokens)
    layers = [layer_part(layer, windows, soft=name in SOFT_SCORES) for layer in base.layers]
    expect(linear(module.lm_head).bias is None, "a bias in its head")
    kinds = sorted({layer.attention.rotation for layer in layers} - {None})
    return ModelParts(
        embedding=embedding,
        embedding_scale=scale,
        layers=layers,
        norm=norm_part(base.norm),
        head=module.lm_head,
        rotations={kind: rotation_of(base.rotary_emb, kind) for kind in kinds},
        softcap=getattr(module.config, "final_logit_softcapping", None) if name in SOFT_LOGITS else None,
    )


def layer_part(layer: nn.Module, windows: dict[int, int | None], *, soft: bool) -> LayerPart:
    names = {name for name, child in layer.named_children() if type(child) is not nn.Dropout}
    places = NORM_PLACES.get(frozenset(names - {"self_attn", "mlp"}))
    expect(places is not None and {"self_attn", "mlp"} <= names, "such a layer")
    norms = [None if place is None else norm_part(getattr(layer, place)) for place in places]
    return LayerPart(
        attention=attention_part(layer.self_attn, windows, soft=soft),
        mlp=gated_part(layer.mlp),
        before_attention=norms[0],
        behind_attention=norms[1],
        before_mlp=norms[2],
        behind_mlp=norms[3],
    )


def attention_part(attention: nn.Module, windows: dict[int, int | None], *, soft: bool) -> AttentionPart:
    names = parts(attention)
    expect(names - HEAD_NORMS in ATTENTION_LINEARS and names & HEAD_NORMS in (set(), HEAD_NORMS), "such an attention")
    expect(getattr(attention, "is_causal", True), "an attention that is not causal")
    normed, size = bool(names & HEAD_NORMS), attention.head_dim
    output = linear(attention.o_proj)
    heads = output.in_features // size
    leads = [attention.qkv_proj] if "qkv_proj" in names else [attention.q_proj, attention.k_proj, attention.v_proj]
    projections = [linear(lead) for lead in leads]
    expect(len({lead.bias is None for lead in projections}) == 1, "biases in some projections")
    kv_heads = (sum(lead.out_features for lead in projections) // size - heads) // 2
    part = AttentionPart(
        layer=attention.layer_idx,
        projections=projections,
        output=output,
        query_norm=norm_part(attention.q_norm) if normed else None,
        key_norm=norm_part(attention.k_norm) if normed else None,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        scale=float(attention.scaling),
        window=getattr(attention, "sliding_window", None) or windows[attention.layer_idx],
        softcap=attention.attn_logit_softcapping if soft else None,
        rotation=rotation_key(attention) if getattr(attention, "use_rope", True) else None,
    )
    check_head_norms(part)
    return part


def check_head_norms(part: AttentionPart) -> None:
    query, key = part.query_norm, part.key_norm
    if query is None or part.normed_whole:
        return
    expect(len(query.weight) == len(key.weight) == part.head_size, "such a query norm")
    expect((query.eps, query.wide) == (key.eps, key.wide), "query norms unlike its key norms")


def gated_part(mlp: nn.Module) -> GatedPart:
    linears = {name for name, child in mlp.named_children() if isinstance(child, nn.Linear)}
    expect(linears in MLP_LINEARS, "such an MLP")
    names = ["gate_up_proj"] if "gate_up_proj" in linears else ["gate_proj", "up_proj"]
    lead = [linear(getattr(mlp, name)) for name in names]
    expect(all(one.bias is None for one in lead), "biases in its gated MLP")
    others = [child for _, child in mlp.named_children() if not isinstance(child, nn.Linear)]
    expect(len(others) == 1, "such an MLP")
    return GatedPart(lead=lead, down=linear(mlp.down_proj), activation=activation_name(others[0]))


def norm_part(norm: nn.Module) -> NormPart:
    """`norm` by the weight and order of rounding that come nearest to what it says of a trial input."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    expect(isinstance(weight, Tensor) and weight.ndim == 1 and eps is not None, "such a norm")
    own = weight.detach().float()
    trial = torch.randn(4, len(own), generator=torch.Generator().manual_seed(0)).to(weight.dtype)
    wanted = norm(trial).detach().float()
    candidates = [NormPart(own, eps, False), NormPart(own, eps, True), NormPart(own + 1, eps, True)]
    distances = [float((normed(trial, part).float() - wanted).abs().max()) for part in candidates]
    nearest = min(distances)
    expect(nearest <= 2 * torch.finfo(weight.dtype).eps * float(wanted.abs().max()), "such a norm")
    return candidates[distances.index(nearest)]


def normed(x: Tensor, part: NormPart) -> Tensor:
    """RMS norm of [..., width], as the native path computes it."""
    wide = x.float()
    unit = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + part.eps)
    return ((unit if part.wide else unit.to(x.dtype).float()) * part.weight).to(x.dtype)


def activation_name(activation: nn.Module) -> str:
    trial = torch.linspace(-8, 8, 257)
    said = activation(trial)
    for name, function in ACTIVATIONS.items():
        if torch.allclose(said, function(trial), rtol=1e-5, atol=1e-6):
            return name
    raise StrangePart(f"the activation {type(activation).__name__}")


def embedding_of(embedding: nn.Module) -> tuple[nn.Embedding, float]:
    """The table, and the factor of its rows: transformers rounds it to the table's dtype."""
    expect(isinstance(embedding, nn.Embedding), "such an embedding")
    table, tokens = embedding.weight, torch.arange(min(4, embedding.num_embeddings))
    factor = getattr(embedding, "embed_scale", None)
    scale = 1.0 if factor is None else float(torch.as_tensor(factor).to(table.dtype))
    expect(torch.equal(embedding(tokens), table[tokens] * torch.tensor(scale, dtype=table.dtype)), "such an embedding")
    return embedding, scale


def rotation_key(attention: nn.Module) -> str:
    """The kind of layer by which the frequencies are kept, empty where all layers share them."""
    return getattr(attention, "layer_type", None) or getattr(attention, "attention_type", None) or ""


def rotation_of(rotary: nn.Module, key: str) -> tuple[Tensor, float]:
    by_kind = isinstance(rotary.rope_type, dict)
    kind = rotary.rope_type.get(key) if by_kind else rotary.rope_type
    expect(kind in STATIC_ROTATIONS, f"rotary embeddings of kind {kind}")
    prefix = f"{key}_" if by_kind else ""
    frequencies = getattr(rotary, f"{prefix}inv_freq").detach().float().contiguous()
    return frequencies, float(getattr(rotary, f"{prefix}attention_scaling"))


def linear(module: nn.Module) -> nn.Linear:
    expect(type(module) is nn.Linear, f"a {type(module).__name__} for a projection")
    return module


def expect(condition: bool, what: str) -> None:
    """Raise `StrangePart` unless `condition` holds."""
    if not condition:
        raise StrangePart(what)
