"""Native multi-token prediction: one more decoder layer over the target's last hidden state and the next embedding.

DeepSeek-V3 (2412.19437) and Qwen3-Next store the same module under other names. One module drafts any number of tokens
by feeding its own output back (FastMTP, 2509.18362).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foredraft.heads.feature_network import FeatureNetwork
from foredraft.heads.layer import Attend, HeadLayer, LayerSizes, Rotary
from foredraft.heads.shared import Borrowed
from foredraft.model.features import FINAL_NORM


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpConfig:
    """A multi-token prediction module.

    Attributes:
        sizes: Of its layer.
        vocabulary: Rows of the target's logits.
        feed_normed: Whether the hidden state fed back has passed the module's last norm; engines differ.
        own_head: Whether it carries an output layer instead of borrowing the target's.
        own_embedding: Whether it carries an embedding instead of borrowing the target's.
    """

    sizes: LayerSizes
    vocabulary: int
    feed_normed: bool = False
    own_head: bool = False
    own_embedding: bool = False


class MtpHead(FeatureNetwork):
    """The next token's embedding and the last hidden state, each normed, joined, through one layer and a norm."""

    feature_layers = (FINAL_NORM,)
    target_ids: Tensor | None = None

    def __init__(
        self,
        config: MtpConfig,
        borrowed: Borrowed,
        *,
        layer: nn.Module | None = None,
        rotary: nn.Module | None = None,
    ):
        """`layer` and `rotary` take the place of our own where the target's architecture has another kind of layer."""
        super().__init__()
        self.config, self.borrowed = config, [borrowed]
        size = config.sizes.hidden_size
        self.enorm, self.hnorm = config.sizes.norm(), config.sizes.norm()
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.layer = HeadLayer(config.sizes) if layer is None else layer
        self.norm = config.sizes.norm()
        self.lm_head = nn.Linear(size, config.vocabulary, bias=False) if config.own_head else None
        self.embed_tokens = nn.Embedding(config.vocabulary, size) if config.own_embedding else None
        self.rotary = Rotary(config.sizes) if rotary is None else rotary

    def fuse(self, features: Tensor) -> Tensor:
        """Hidden states after the target's last norm [..., hidden], as they are: `hnorm` norms them again."""
        return features

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [B, T, hidden] after the tokens [B, T] that follow `hidden` [B, T, hidden]."""
        embed = self.borrowed[0].embed if self.embed_tokens is None else self.embed_tokens
        embedding = embed(tokens).to(hidden.dtype)
        x = self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(hidden)], dim=-1))
        return self.layer(x, self.rotary(x, positions), attend)

    def logits(self, out: Tensor) -> Tensor:
        """Logits over the target's vocabulary, [..., V]."""
        head = self.borrowed[0].head if self.lm_head is None else self.lm_head
        return head(self.norm(out))

    def fed_back(self, out: Tensor) -> Tensor:
        return self.norm(out) if self.config.feed_normed else out
