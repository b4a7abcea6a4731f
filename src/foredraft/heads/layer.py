"""The decoder layer heads are made of; who sees whom is its caller's matter, so that it trains and drafts unchanged.

Shapes: B texts, T rows of each, H query heads, G key-value heads, D head size.
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


class Attend(Protocol):
    """Lets rows see what they may: packed over the slot pool when drafting, masked over whole texts when training."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """From queries [B, H, T, D], keys and values [B, G, T, D] of the rows to their mixed values, [B, T, H D]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSizes:
    """Sizes of a head's decoder layers.

    Attributes:
        hidden_size, intermediate_size, heads, kv_heads, head_dim: As in a Llama config.
        rms_norm_eps, hidden_act: Likewise.
        rope: transformers' rope parameters; published EAGLE-3 heads without any were trained with base 10000.
        max_positions: Positions the head was made for.
        attention_bias: Whether queries, keys and values have a bias.
        head_norms: Whether queries and keys pass an RMS norm of their own, as in Qwen3.
    """

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    hidden_act: str = "silu"
    rope: dict = field(default_factory=lambda: dict(DEFAULT_ROPE), hash=False)
    max_positions: int = 2048
    attention_bias: bool = False
    head_norms: bool = False

    def norm(self, size: int | None = None) -> nn.Module:
        return LlamaRMSNorm(size or self.hidden_size, eps=self.rms_norm_eps)


class Rotary(nn.Module):
    """Cosines and sines of positions by transformers' own rope kinds."""

    def __init__(self, sizes: LayerSizes):
        super().__init__()
        config = LlamaConfig(
            hidden_size=sizes.heads * sizes.head_dim,
            num_attention_heads=sizes.heads,
            head_dim=sizes.head_dim,
            max_position_embeddings=sizes.max_positions,
            rope_parameters=dict(sizes.rope),
        )
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines, and sines with the sign each half takes, [B, 1, T, D] in the dtype of `like`; positions [B, T]."""
        cos, sin = self.rotary(like, position_ids=positions)
        half = sin.shape[-1] // 2
        signed = torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        return cos[:, None], signed[:, None]


def rotated(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embedding (Su et al. 2021) of [B, N, T, D]."""
    cos, signed_sin = rotation
    return x * cos + x.roll(x.shape[-1] // 2, -1) * signed_sin


class HeadAttention(nn.Module):
    """Grouped attention whose rows may be wider than its output, as EAGLE-3's are."""

    def __init__(self, sizes: LayerSizes, input_size: int):
        super().__init__()
        self.sizes = sizes
        heads, kv_heads = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(input_size, heads, bias=sizes.attention_bias)
        self.k_proj = nn.Linear(input_size, kv_heads, bias=sizes.attention_bias)
        self.v_proj = nn.Linear(input_size, kv_heads, bias=sizes.attention_bias)
        self.o_proj = nn.Linear(heads, sizes.hidden_size, bias=False)
        self.q_norm = sizes.norm(sizes.head_dim) if sizes.head_norms else nn.Identity()
        self.k_norm = sizes.norm(sizes.head_dim) if sizes.head_norms else nn.Identity()

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend, layer: int) -> Tensor:
        query = rotated(self.q_norm(self.split(self.q_proj(x))), rotation)
        key, value = self.keys_values(x, rotation)
        return self.o_proj(attend(layer, query, key, value))

    def keys_values(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Rotated keys and values of rows [B, T, input size], [B, G, T, D] each."""
        key = rotated(self.k_norm(self.split(self.k_proj(x))), rotation)
        return key, self.split(self.v_proj(x))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.sizes.head_dim)).transpose(1, 2)


class GatedMlp(nn.Module):
    def __init__(self, sizes: LayerSizes):
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.up_proj = nn.Linear(sizes.hidden_size, sizes.intermediate_size, bias=False)
        self.down_proj = nn.Linear(sizes.intermediate_size, sizes.hidden_size, bias=False)
        self.act_fn = ACT2FN[sizes.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class HeadLayer(nn.Module):
    """Attention and a gated MLP, each with a residual; its caller norms what enters the attention."""

    def __init__(self, sizes: LayerSizes, index: int = 0, *, input_size: int | None = None, input_norm: bool = True):
        super().__init__()
        self.index = index
        self.self_attn = HeadAttention(sizes, input_size or sizes.hidden_size)
        self.mlp = GatedMlp(sizes)
        self.input_layernorm = sizes.norm() if input_norm else nn.Identity()
        self.post_attention_layernorm = sizes.norm()

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """A plain decoder layer over residual rows [B, T, hidden]."""
        return self.after(x, self.input_layernorm(x), rotation, attend)

    def after(self, residual: Tensor, x: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """The layer with `x` [B, T, input size] entering the attention and `residual` [B, T, hidden] passing it by."""
        hidden = residual + self.self_attn(x, rotation, attend, self.index)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))
