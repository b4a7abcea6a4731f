"""EAGLE heads: one layer that predicts the target's next features from the last ones and the token drawn from them.

EAGLE-1 and EAGLE-2 share a head (Li et al. 2401.15077, 2406.16858): `fc(cat(embedding, feature))`, a layer without
input norm, the target's own output layer, features after the target's last norm. EAGLE-3 (Li et al. 2503.01840) fuses
residual streams of several layers, feeds `cat(norm(embedding), norm(hidden))` and has an output layer of its own over
a reduced vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foredraft.heads.feature_network import FeatureNetwork
from foredraft.heads.layer import Attend, HeadLayer, LayerSizes, Rotary
from foredraft.heads.shared import Borrowed, draft_ids
from foredraft.model.features import FINAL_NORM


@dataclass(frozen=True, kw_only=True, slots=True)
class EagleConfig:
    """An EAGLE-1 or EAGLE-2 head.

    Attributes:
        sizes: Of its layers; the hidden size is the target's.
        vocabulary: Rows of the target's logits.
        layers: Decoder layers, one in every published head.
        bias: Whether `fc` has one; published configs without the key mean yes.
    """

    sizes: LayerSizes
    vocabulary: int
    layers: int = 1
    bias: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Config:
    """An EAGLE-3 head.

    Attributes:
        sizes: Of its layers.
        vocabulary: Rows of the target's logits.
        draft_vocabulary: Rows of its own.
        target_hidden_size: Width of one captured feature.
        feature_layers: Boundaries whose residual streams it fuses: i is the input of layer i.
        layers: Decoder layers; the first reads twice the width.
        norm_before_residual: Whether the residual is the normed hidden state instead of the hidden state.
        fc_norm: Whether each captured feature passes a norm of its own before `fc` (EAGLE-3.1).
        norm_before_fc: Whether their concatenation passes one norm; excludes `fc_norm`.
        norm_output: Whether the hidden state fed back is the normed one (EAGLE-3.1).
        own_embedding: Whether it carries an embedding instead of borrowing the target's.
    """

    sizes: LayerSizes
    vocabulary: int
    draft_vocabulary: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]
    layers: int = 1
    norm_before_residual: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    own_embedding: bool = False


class EagleHead(FeatureNetwork):
    """The head of EAGLE-1 and EAGLE-2."""

    feature_layers = (FINAL_NORM,)

    def __init__(self, config: EagleConfig, borrowed: Borrowed):
        super().__init__()
        self.config, self.borrowed = config, [borrowed]
        size = config.sizes.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=config.bias)
        self.layers = nn.ModuleList(
            HeadLayer(config.sizes, index, input_norm=index > 0) for index in range(config.layers)
        )
        self.rotary = Rotary(config.sizes)
        self.target_ids: Tensor | None = None

    def fuse(self, features: Tensor) -> Tensor:
        """Features of committed positions [..., hidden] as the head takes them: unchanged."""
        return features

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Predicted features [B, T, hidden] of the tokens [B, T] that follow `hidden` [B, T, hidden]."""
        x = self.fc(torch.cat([self.borrowed[0].embed(tokens).to(hidden.dtype), hidden], dim=-1))
        rotation = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, rotation, attend)
        return x

    def logits(self, out: Tensor) -> Tensor:
        """Logits over the target's vocabulary: a predicted feature stands where the target's own would."""
        return self.borrowed[0].head(out)

    def fed_back(self, out: Tensor) -> Tensor:
        return out


class Eagle3Layer(HeadLayer):
    """The first layer of an EAGLE-3 head: embedding and hidden state enter the attention side by side."""

    def __init__(self, config: Eagle3Config):
        super().__init__(config.sizes, 0, input_size=2 * config.sizes.hidden_size)
        self.hidden_norm = config.sizes.norm()
        self.normed_residual = config.norm_before_residual

    def join(self, embedding: Tensor, hidden: Tensor, rotation: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        normed = self.hidden_norm(hidden)
        x = torch.cat([self.input_layernorm(embedding), normed], dim=-1)
        return self.after(normed if self.normed_residual else hidden, x, rotation, attend)


class Eagle3Head(FeatureNetwork):
    """The head of EAGLE-3 and EAGLE-3.1."""

    def __init__(self, config: Eagle3Config, borrowed: Borrowed):
        super().__init__()
        assert not (config.fc_norm and config.norm_before_fc)
        self.config, self.borrowed = config, [borrowed]
        sizes, width = config.sizes, config.target_hidden_size
        count = len(config.feature_layers)
        self.feature_layers = config.feature_layers
        self.fc = nn.Linear(count * width, sizes.hidden_size, bias=False)
        self.fc_norm = nn.ModuleList(sizes.norm(width) for _ in range(count)) if config.fc_norm else None
        self.input_norm = sizes.norm(count * width) if config.norm_before_fc else None
        later = (HeadLayer(sizes, index) for index in range(1, config.layers))
        self.layers = nn.ModuleList([Eagle3Layer(config), *later])
        self.norm = sizes.norm()
        self.lm_head = nn.Linear(sizes.hidden_size, config.draft_vocabulary, bias=False)
        self.embed_tokens = nn.Embedding(config.vocabulary, sizes.hidden_size) if config.own_embedding else None
        self.rotary = Rotary(sizes)
        if config.draft_vocabulary != config.vocabulary:
            self.register_buffer("d2t", torch.zeros(config.draft_vocabulary, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(config.vocabulary, dtype=torch.bool))
        else:
            self.d2t = None

    @property
    def target_ids(self) -> Tensor | None:
        """Target id of each of its logits, [V_draft]; none where the vocabularies are one."""
        return None if self.d2t is None else draft_ids(self.d2t)

    def fuse(self, features: Tensor) -> Tensor:
        """Captured features side by side, [..., layers x width], as one hidden state, [..., hidden]."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.split(self.config.target_hidden_size, dim=-1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        return self.fc(features)

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [B, T, hidden] after the tokens [B, T] that follow `hidden` [B, T, hidden]."""
        embed = self.borrowed[0].embed if self.embed_tokens is None else self.embed_tokens
        rotation = self.rotary(hidden, positions)
        x = self.layers[0].join(embed(tokens).to(hidden.dtype), hidden, rotation, attend)
        for layer in self.layers[1:]:
            x = layer(x, rotation, attend)
        return x

    def logits(self, out: Tensor) -> Tensor:
        """Logits over the draft vocabulary, [..., V_draft]."""
        return self.lm_head(self.norm(out))

    def fed_back(self, out: Tensor) -> Tensor:
        """What stands for the features of a drafted position: the output itself, before the norm."""
        return self.norm(out) if self.config.norm_output else out
