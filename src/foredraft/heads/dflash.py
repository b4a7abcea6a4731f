"""DFlash (2602.06036): a whole block of tokens in one forward, each guessed from the target's features and masks.

The block is the root and masks after it. In every layer the block's queries see keys and values made from the fused
target features of the committed positions, and those of the whole block, later masks included.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from foredraft.core.step_plan import StepPlan
from foredraft.heads.layer import Attend, HeadLayer, LayerSizes, Rotary
from foredraft.heads.packed_attend import PackedAttend
from foredraft.heads.shared import Borrowed
from foredraft.model.slot_pool import LayerGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashConfig:
    """A block drafter.

    Attributes:
        sizes: Of its layers.
        vocabulary: Rows of the target's logits.
        target_hidden_size: Width of one captured feature.
        feature_layers: Boundaries it fuses; a published `target_layer_ids` entry i is boundary i + 1.
        layers: Decoder layers.
        block_size: Rows of a block, the root included.
        mask_token_id: The token that stands for a position to guess.
        causal: Whether a row of the block sees only earlier rows of it (JetSpec).
    """

    sizes: LayerSizes
    vocabulary: int
    target_hidden_size: int
    feature_layers: tuple[int, ...]
    layers: int
    block_size: int
    mask_token_id: int
    causal: bool = False


class DFlashHead(nn.Module):
    """The block drafter's network; embedding and output layer are the target's.

    Attributes:
        path: A line that says what runs it, and why where that is not the native extension.
    """

    path = "torch"

    def __init__(self, config: DFlashConfig, borrowed: Borrowed):
        super().__init__()
        self.config, self.borrowed = config, [borrowed]
        self.feature_layers = config.feature_layers
        size = config.sizes.hidden_size
        self.fc = nn.Linear(len(config.feature_layers) * config.target_hidden_size, size, bias=False)
        self.hidden_norm, self.norm = config.sizes.norm(), config.sizes.norm()
        self.layers = nn.ModuleList(HeadLayer(config.sizes, index) for index in range(config.layers))
        self.rotary = Rotary(config.sizes)

    def fuse(self, features: Tensor) -> Tensor:
        """Captured features side by side [..., layers x width] as the context every layer reads, [..., hidden]."""
        return self.hidden_norm(self.fc(features))

    def context(self, fused: Tensor, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Each layer's keys and values of committed positions, [B, G, M, D] each; `fused` [B, M, hidden]."""
        rotation = self.rotary(fused, positions)
        return [layer.self_attn.keys_values(fused, rotation) for layer in self.layers]

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Hidden states [B, N, hidden] of blocks [B, N]; `attend` adds the context's keys and values."""
        x = self.borrowed[0].embed(tokens).to(self.norm.weight.dtype)
        rotation = self.rotary(x, positions)
        for layer in self.layers:
            x = layer(x, rotation, attend)
        return x

    def store(self, features: Tensor, plan: StepPlan, layers: LayerGroup) -> None:
        """Store context keys and values of the plan's rows, made from captured features [T, layers x width]."""
        for layer, (key, value) in enumerate(self.context(self.fuse(features)[None], plan.positions)):
            layers.write(layer, plan.write, key[0], value[0])

    def guess(self, plan: StepPlan, layers: LayerGroup) -> Tensor:
        """Logits of the plan's wanted rows, [R, V], after one run of its blocks."""
        attend = PackedAttend(plan, layers, self.config.sizes.head_dim**-0.5)
        return self.logits(self(plan.tokens, plan.positions, attend)[0, plan.logit_rows])

    def logits(self, out: Tensor) -> Tensor:
        """Logits over the target's vocabulary, [..., V]; those of row k guess the k-th token after the root."""
        return self.borrowed[0].head(self.norm(out))
