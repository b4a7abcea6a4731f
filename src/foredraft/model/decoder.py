"""The plain decoder family without the module tree around it: half of a small model's forward is calls, not products.

Covers any transformers model whose modules are a token embedding, layers of attention behind one RMS norm and a gated
MLP behind another, a last norm and a head, all of them already packed. What the modules do not show (a multiplier, a
layer without rotation) shows in the trial, and such a model keeps its module path.

Shapes: T rows of the pack, H query heads, G key-value heads, D head size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foredraft.core.step_plan import StepPlan
from foredraft.model.attending import Attending
from foredraft.model.attention import attend_packed
from foredraft.model.capture import States
from foredraft.model.fast_norm import FastRMSNorm
from foredraft.model.features import FINAL_NORM
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips
from foredraft.model.packed_weights import FusedFollower, FusedLead, PackedLinear
from foredraft.model.slot_pool import LayerGroup

MODEL_PARTS = {"embed_tokens", "layers", "norm", "rotary_emb"}
LAYER_PARTS = {"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}
ATTENTION_PARTS = {"q_proj", "k_proj", "v_proj", "o_proj"}
HEAD_NORMS = {"q_norm", "k_norm"}
MLP_PARTS = {"gate_proj", "up_proj", "down_proj", "act_fn"}


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderLayer:
    """One layer's weights and sizes."""

    attention_norm: FastRMSNorm
    projections: PackedLinear  # [..., hidden] to queries, keys and values, [..., (H + 2 G) D]
    query_norm: FastRMSNorm | None
    key_norm: FastRMSNorm | None
    output: PackedLinear
    mlp_norm: FastRMSNorm
    gate_and_up: PackedLinear
    activation: nn.Module
    down: PackedLinear
    attending: Attending
    heads: int
    kv_heads: int

    def attended(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], plan: StepPlan, layers: LayerGroup) -> Tensor:
        query, key, value = self.project(self.attention_norm.forward(hidden), rotation)
        mixed = attend_packed(query, key, value, self.attending, plan, layers)
        return hidden + self.output.forward(mixed.reshape(hidden.shape[0], -1))

    def transformed(self, hidden: Tensor) -> Tensor:
        both = self.gate_and_up.forward(self.mlp_norm.forward(hidden))
        gate, up = both.chunk(2, dim=-1)
        return hidden + self.down.forward(self.activation.forward(gate) * up)

    def project(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [1, H, T, D], rotated keys [1, G, T, D] and values [1, G, T, D]."""
        together = self.projections.forward(x).view(x.shape[0], self.heads + 2 * self.kv_heads, -1)
        rotated = together[:, : self.heads + self.kv_heads]  # [T, H + G, D]
        if self.query_norm is not None:
            query, key = (
                self.query_norm.forward(rotated[:, : self.heads]),
                self.key_norm.forward(rotated[:, self.heads :]),
            )
            rotated = torch.cat([query, key], dim=1)
        rotated = rotate(rotated, *rotation).transpose(0, 1)[None]
        value = together[:, self.heads + self.kv_heads :].transpose(0, 1)[None]
        return rotated[:, : self.heads], rotated[:, self.heads :], value


def rotate(heads: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of [T, N, D]; its halves change places and the first takes the sign."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return (heads * cos).add_(swapped.mul_(signed_sin))


class Decoder:
    """The whole forward of one model over a plan."""

    note = "layers run without their module tree"

    def __init__(self, module: nn.Module, layers: list[DecoderLayer]):
        self.embedding, self.rotary = module.model.embed_tokens, module.model.rotary_emb
        self.norm, self.head = module.model.norm, module.lm_head
        self.layers = layers

    @torch.inference_mode()
    def __call__(
        self, plan: StepPlan, layers: LayerGroup, features: Sequence[int] = (), skips: LayerSkips = NOTHING_SKIPPED
    ) -> tuple[Tensor, States]:
        """Logits of the plan's wanted rows, [R, V], and the hidden states `features` of all rows, [T, hidden] each.

        The sublayers `skips` are left out: nothing of them is computed or stored.
        """
        hidden = self.embedding(plan.tokens)  # [1, T, hidden]
        rotation = self.rotation(hidden, plan.positions)
        hidden, states = hidden[0], {}
        for boundary, layer in enumerate(self.layers):
            if boundary in features:
                states[boundary] = hidden
            if boundary not in skips.attention:
                hidden = layer.attended(hidden, rotation, plan, layers)
            if boundary not in skips.mlp:
                hidden = layer.transformed(hidden)
        if len(self.layers) in features:
            states[len(self.layers)] = hidden
        return self.finish(hidden, plan.logit_rows, states, FINAL_NORM in features), states

    def finish(self, hidden: Tensor, rows: Tensor, states: States, keep: bool) -> Tensor:
        """Logits of `rows`; all rows are normed only where their normed states are to be kept."""
        if keep:
            states[FINAL_NORM] = self.norm(hidden)
        if not len(rows):
            return hidden.new_empty(0, self.head.out_features)
        return self.head(states[FINAL_NORM][rows] if keep else self.norm(hidden[rows]))

    def rotation(self, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign each half takes, [T, 1, D] each."""
        cos, sin = self.rotary(hidden, position_ids=positions)  # [1, T, D]
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return cos[0, :, None], signed[0, :, None]


def decoder_of(module: nn.Module, windows: dict[int, int | None]) -> Decoder | None:
    """A `Decoder` over `module`'s packed parts, or none where it is built of other parts."""
    base = getattr(module, "model", None)
    if parts(module) != {"model", "lm_head"} or parts(base) != MODEL_PARTS:
        return None
    if type(base.norm) is not FastRMSNorm or type(module.lm_head) is not PackedLinear:
        return None
    layers = [layer_of(layer, windows) for layer in base.layers]
    return None if None in layers else Decoder(module, layers)


def layer_of(layer: nn.Module, windows: dict[int, int | None]) -> DecoderLayer | None:
    if parts(layer) != LAYER_PARTS or parts(layer.mlp) != MLP_PARTS:
        return None
    attention, mlp = layer.self_attn, layer.mlp
    normed = parts(attention) == ATTENTION_PARTS | HEAD_NORMS
    if not normed and parts(attention) != ATTENTION_PARTS:
        return None
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [attention.q_norm, attention.k_norm] if normed else []
    if not all(type(norm) is FastRMSNorm for norm in norms):
        return None
    if not (fused(attention.q_proj, attention.v_proj, 3) and fused(mlp.gate_proj, mlp.up_proj, 2)):
        return None
    window = getattr(attention, "sliding_window", None) or windows[attention.layer_idx]
    query_size, key_size, _ = attention.q_proj.sizes
    return DecoderLayer(
        attention_norm=norms[0],
        projections=attention.q_proj.product,
        query_norm=attention.q_norm if normed else None,
        key_norm=attention.k_norm if normed else None,
        output=attention.o_proj,
        mlp_norm=norms[1],
        gate_and_up=mlp.gate_proj.product,
        activation=mlp.act_fn,
        down=mlp.down_proj,
        attending=Attending(layer=attention.layer_idx, scale=attention.scaling, window=window),
        heads=query_size // attention.head_dim,
        kv_heads=key_size // attention.head_dim,
    )


def fused(lead: nn.Module, last: nn.Module, count: int) -> bool:
    """Whether `lead` computes `count` projections and `last` is one of its followers."""
    return type(lead) is FusedLead and type(last) is FusedFollower and len(lead.sizes) == count


def parts(module: nn.Module | None) -> set[str]:
    return set() if module is None else {name for name, _ in module.named_children()}
