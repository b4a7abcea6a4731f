"""Heads written out in plain torch from the papers' formulas: whole texts, explicit masks and rotations, no cache.

A text is T rows: row i reads a hidden state [hidden] and the token after it, at position i. `w` is a head's state dict.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    head_dim: int
    theta: float
    eps: float


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def turned(x: Tensor, theta: float) -> Tensor:
    """Row t of one attention head [T, D] turned by t times the frequency of each pair (d, d + D / 2)."""
    half = x.shape[1] // 2
    angle = torch.arange(len(x))[:, None] / theta ** (torch.arange(half) / half)
    left, right = x[:, :half], x[:, half:]
    return torch.cat([left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin()], dim=1)


def product(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def attention(x: Tensor, w: dict[str, Tensor], at: str, shape: Shape) -> Tensor:
    """Each head by itself: rows [T, input] to [T, hidden]."""
    query, key, value = (product(x, w, f"{at}.{name}_proj") for name in "qkv")
    future = torch.full((len(x), len(x)), float("-inf")).triu(1)
    mixed, size = [], shape.head_dim
    for head in range(shape.heads):
        group = head // (shape.heads // shape.kv_heads)
        q, k = query[:, head * size : (head + 1) * size], key[:, group * size : (group + 1) * size]
        if f"{at}.q_norm.weight" in w:
            q, k = (rms(part, w[f"{at}.{n}_norm.weight"], shape.eps) for part, n in ((q, "q"), (k, "k")))
        scores = turned(q, shape.theta) @ turned(k, shape.theta).T / size**0.5 + future
        mixed.append(scores.softmax(-1) @ value[:, group * size : (group + 1) * size])
    return product(torch.cat(mixed, dim=1), w, f"{at}.o_proj")


def layer(x: Tensor, w: dict[str, Tensor], at: str, shape: Shape) -> Tensor:
    """A decoder layer; its input norm is left out where there is no weight for it."""
    norm = w.get(f"{at}.input_layernorm.weight")
    return after_attention(x, x if norm is None else rms(x, norm, shape.eps), w, at, shape)


def after_attention(residual: Tensor, x: Tensor, w: dict[str, Tensor], at: str, shape: Shape) -> Tensor:
    h = residual + attention(x, w, f"{at}.self_attn", shape)
    normed = rms(h, w[f"{at}.post_attention_layernorm.weight"], shape.eps)
    gate, up = product(normed, w, f"{at}.mlp.gate_proj"), product(normed, w, f"{at}.mlp.up_proj")
    return h + product(gate * torch.sigmoid(gate) * up, w, f"{at}.mlp.down_proj")
