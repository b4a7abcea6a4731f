"""Medusa heads (Cai et al. 2401.10774): residual blocks on the last hidden state, each head one token further ahead."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foredraft.model.features import FINAL_NORM


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaConfig:
    """A set of Medusa heads.

    Attributes:
        hidden_size: The target's.
        vocabulary: Rows of the target's logits.
        heads: How many; head i guesses the token i + 1 after the root.
        layers: Residual blocks of a head.
        bias: Whether the blocks have one.
        draft_vocabulary: Rows of a head's logits.
        accuracies: Measured share of texts where the token was the head's rank-th guess, [heads][ranks]; from these the
            static tree is built. Empty where nobody measured.
    """

    hidden_size: int
    vocabulary: int
    heads: int
    layers: int = 1
    bias: bool = True
    draft_vocabulary: int
    accuracies: tuple[tuple[float, ...], ...] = ()


class ResidualBlock(nn.Module):
    """`x + silu(W x + b)`, nothing but `x` before training."""

    def __init__(self, size: int, bias: bool):
        super().__init__()
        self.linear = nn.Linear(size, size, bias=bias)
        nn.init.zeros_(self.linear.weight)
        if bias:
            nn.init.zeros_(self.linear.bias)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.act(self.linear(x))


class MedusaHeads(nn.Module):
    """All heads of a target.

    Attributes:
        path: A line that says what runs them, and why where that is not the native extension.
    """

    feature_layers = (FINAL_NORM,)
    path = "torch"

    def __init__(self, config: MedusaConfig):
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResidualBlock(config.hidden_size, config.bias) for _ in range(config.layers)))
            for _ in range(config.heads)
        )
        self.lm_heads = nn.ModuleList(
            nn.Linear(config.hidden_size, config.draft_vocabulary, bias=False) for _ in range(config.heads)
        )
        reduced = config.draft_vocabulary != config.vocabulary
        ids = torch.zeros(config.draft_vocabulary, dtype=torch.int64) if reduced else None
        self.register_buffer("target_ids", ids)  # target id of each logit, [V_draft]

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits of every head, [heads, ..., V_draft], from hidden states after the last norm, [..., hidden]."""
        return torch.stack([head(block(hidden)) for block, head in zip(self.blocks, self.lm_heads, strict=True)])
