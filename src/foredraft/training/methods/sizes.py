"""Sizes of a new head, taken from its target where nobody says otherwise."""

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from foredraft.core.errors import require
from foredraft.heads.layer import DEFAULT_ROPE, LayerSizes
from foredraft.training.draft_vocabulary import choose_vocabulary
from foredraft.training.methods.lesson import DraftVocabulary
from foredraft.training.methods.method import Setting
from foredraft.training.target_network import TargetNetwork


def sizes_like(
    config: PretrainedConfig, *, intermediate_size: int | None, own_rope: bool = False, head_norms: bool = False
) -> LayerSizes:
    """Layers like the target's; `own_rope` takes the rope of published EAGLE heads instead of the target's."""
    config = config.get_text_config()
    heads = config.num_attention_heads
    rope = DEFAULT_ROPE if own_rope else getattr(config, "rope_parameters", None) or DEFAULT_ROPE
    return LayerSizes(
        hidden_size=config.hidden_size,
        intermediate_size=intermediate_size or getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
        rope=dict(rope) if "rope_type" in rope else dict(DEFAULT_ROPE),
        max_positions=getattr(config, "max_position_embeddings", None) or 2048,
        head_norms=head_norms,
    )


def drafted_vocabulary(setting: Setting, size: int) -> DraftVocabulary:
    """The `size` tokens written most in the training samples; all that are no padding where there are no more.

    The target's end tokens are always among them.
    """
    known = setting.target.vocabulary
    if size >= known.size == known.rows:
        return whole_vocabulary(setting)
    if size >= known.size:
        ids = torch.arange(known.size)
    else:
        ids = choose_vocabulary(setting.samples, size, known.size, known.eos_token_ids)
    return DraftVocabulary.of(torch.as_tensor(ids).to(setting.target.device), known.size)


def whole_vocabulary(setting: Setting) -> DraftVocabulary:
    """Every token of the target."""
    size = setting.target.vocabulary.size
    return DraftVocabulary(size, size)


def output_rows(setting: Setting, vocabulary: DraftVocabulary) -> Tensor:
    """Rows of the target's output layer, those of a draft vocabulary, [V_draft, hidden] in fp32."""
    weight = getattr(setting.target.borrowed.head, "weight", None)
    name = setting.target.name
    require(weight is not None, f"{name} has no plain output layer to start from; say --output-init random")
    return vocabulary.columns(weight.detach().float().T).T


def fused_boundaries(asked: tuple[int, ...] | None, usual: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Boundaries to fuse, ascending: those asked for, else the usual ones moved into a target of few layers.

    Raises `ConfigError` for one the target has not.
    """
    for boundary in asked or ():
        require(0 <= boundary <= layers, f"feature_layers holds {boundary}; it must be from 0 to {layers}")
    return asked or tuple(sorted({min(max(boundary, 1), layers) for boundary in usual}))


@torch.no_grad()
def copy_last_norm(target: TargetNetwork, norm: nn.Module) -> None:
    """Start a head's last norm as the target's own, after which its output layer was trained."""
    own = getattr(target.module.get_decoder(), "norm", None)
    if own is None or "RMSNorm" not in type(own).__name__:
        return
    weight = next(own.parameters())
    scale = own(torch.ones(1, len(weight), dtype=weight.dtype, device=weight.device))[0]  # some store it less one
    norm.weight.copy_(scale)


def mask_token(target: TargetNetwork, asked: int | None) -> int:
    """The token that stands for one to guess: `asked`, else one that texts hold least. Raises `ConfigError`."""
    known, tokenizer = target.vocabulary, target.tokenizer
    if asked is not None:
        require(0 <= asked < known.rows, f"mask_token_id is {asked}; it must be from 0 to {known.rows - 1}")
        return asked
    if known.rows > known.size:
        return known.size
    special = (tokenizer.mask_token_id, tokenizer.pad_token_id, *known.eos_token_ids)
    return next((token for token in special if token is not None), known.rows - 1)
