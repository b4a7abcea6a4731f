"""A DFlash head from tensors and config values, as its own layout and speculators share them."""

from collections.abc import Sequence
from dataclasses import dataclass

from foredraft.checkpoints.eagle3_head import canonical, plain_tensors
from foredraft.checkpoints.feature_layers import fused_layers, inferred_count
from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import counted, sizes_of
from foredraft.core.errors import ModelError, require
from foredraft.heads.dflash import DFlashConfig

BORROWED = ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "verifier_norm.weight", "verifier_lm_head.weight")
# What changes the computation in a way no DFlashConfig says, with the value that does not.
PLAIN = {
    "draft_shift": False,
    "shift_label": False,
    "sample_from_anchor": False,
    "projector_type": "dflash",
    "output_multiplier": 1,
    "input_embedding_scale": 1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashSchema:
    """Where one layout of DFlash files keeps things.

    Attributes:
        format: In words.
        options: The config's values of the whole head.
        layer: Its values of the decoder layers.
        ids: Layer ids, none where it names none.
        convention: What ids count.
        causal: Whether a row of the block sees only earlier ones.
    """

    format: str
    options: dict
    layer: dict
    ids: Sequence[int] | None
    convention: str
    causal: bool


def dflash_head(source: HeadSource, schema: DFlashSchema) -> HeadCheckpoint:
    refuse_variants(schema.options)
    copies = [name for name in source.files.names if canonical(name) in BORROWED]
    source.note(bool(copies), f"{', '.join(copies)}: frozen parts of the target's own, which is used whole")
    tensors = plain_tensors(source, lambda name: name not in BORROWED)
    require("fc.weight" in tensors, "tensor fc.weight missing from the head", ModelError)
    vocabulary = schema.layer.get("vocab_size") or source.target.vocabulary_rows
    source.require_vocabulary(vocabulary)
    width = schema.options.get("target_hidden_size") or source.target.hidden_size
    source.require_width(width)
    sizes = sizes_of(source, schema.layer, tensors)
    source.require_width(sizes.hidden_size)
    count = inferred_count(tensors["fc.weight"].shape, width)
    default = spread(count, source.target.layers)
    config = DFlashConfig(
        sizes=sizes,
        vocabulary=vocabulary,
        target_hidden_size=width,
        feature_layers=fused_layers(source, count=count, ids=schema.ids, convention=schema.convention, default=default),
        layers=counted(tensors, r"layers\.(\d+)\."),
        block_size=whole_option(schema.options, "block_size", 2),
        mask_token_id=mask_of(schema, vocabulary),
        causal=schema.causal,
    )
    return HeadCheckpoint(
        name=source.name,
        method="dflash",
        format=schema.format,
        config=config,
        tensors=tensors,
        notes=tuple(source.notes),
    )


def refuse_variants(options: dict) -> None:
    for key, plain in PLAIN.items():
        value = options.get(key)
        require(value is None or value == plain, f"its config sets {key} to {value!r}, which is not read", ModelError)


def mask_of(schema: DFlashSchema, vocabulary: int) -> int:
    token = whole_option(schema.options, "mask_token_id", 0)
    require(token < vocabulary, f"its mask_token_id {token} is outside its vocabulary of {vocabulary}", ModelError)
    return token


def whole_option(options: dict, key: str, least: int) -> int:
    value = options.get(key)
    right = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(right, f"its config has {key} {value!r}; it must be a whole number from {least}", ModelError)
    return value


def spread(count: int, target_layers: int) -> tuple[int, ...]:
    """Boundaries a config without layer ids means: outputs spread evenly from layer 1 to the third from the last."""
    if count == 1:
        return (target_layers // 2 + 1,)
    step = (target_layers - 4) / (count - 1)
    return tuple(round(1 + step * index) + 1 for index in range(count))
