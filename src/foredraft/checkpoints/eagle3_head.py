"""An EAGLE-3 head from tensors and config values, as the EAGLE layout and speculators share them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from foredraft.checkpoints.feature_layers import fused_layers, inferred_count
from foredraft.checkpoints.head import HeadCheckpoint, Tensors
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import counted, sizes_of
from foredraft.checkpoints.vocabulary_maps import checked_maps
from foredraft.core.errors import ModelError, require
from foredraft.heads.eagle import Eagle3Config
from foredraft.model.features import FINAL_NORM

UNUSED = "rotary_emb.inv_freq"
RENAMED = {"midlayer.": "layers.0.", "draft_id_to_target_id": "d2t"}
NORM_OUTPUT = (
    "norm_output is true: read as EAGLE-3.1, which feeds back normed states; SpecForge before September 2026 wrote it "
    "for ordinary EAGLE-3 heads too: try norm_output false where few drafts are accepted"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Schema:
    """Where one layout of EAGLE-3 files keeps things.

    Attributes:
        format: In words.
        options: The config's values of the whole head.
        layer: Its values of the decoder layers.
        ids: Layer ids, none where it names none.
        convention: What ids count.
        normed_residual: What a missing `norm_before_residual` means.
    """

    format: str
    options: dict
    layer: dict
    ids: Sequence[int] | None
    convention: str
    normed_residual: bool


def canonical(name: str) -> str:
    """A published tensor name as our network calls it."""
    name = name.removeprefix("model.")
    for published, ours in RENAMED.items():
        if name.startswith(published):
            return ours + name.removeprefix(published)
    return name


def plain_tensors(source: HeadSource, keep: Callable[[str], bool] = lambda name: True) -> Tensors:
    """The tensors of an EAGLE-like folder under canonical names."""
    names = [name for name in source.files.names if not name.endswith(UNUSED) and keep(canonical(name))]
    return {canonical(name): tensor for name, tensor in source.files.read(names).items()}


def eagle3_head(source: HeadSource, schema: Eagle3Schema, tensors: Tensors) -> HeadCheckpoint:
    sizes = sizes_of(source, schema.layer, tensors)
    vocabulary = schema.layer.get("vocab_size") or source.target.vocabulary_rows
    source.require_vocabulary(vocabulary)
    width = schema.options.get("target_hidden_size") or source.target.hidden_size
    source.require_width(width)
    require("lm_head.weight" in tensors, "tensor lm_head.weight missing from the head", ModelError)
    draft = len(tensors["lm_head.weight"])
    maps = checked_maps(source, tensors.pop("d2t", None), tensors.pop("t2d", None), draft, vocabulary)
    config = Eagle3Config(
        sizes=sizes,
        vocabulary=vocabulary,
        draft_vocabulary=draft,
        target_hidden_size=width,
        feature_layers=features_of(source, schema, tensors, width),
        layers=counted(tensors, r"layers\.(\d+)\."),
        norm_before_residual=residual_of(source, schema),
        norm_output=norm_output_of(source, schema),
        own_embedding="embed_tokens.weight" in tensors,
        **norms_of(source, schema, tensors),
    )
    tell_vocabularies(source, schema, config)
    return HeadCheckpoint(
        name=source.name,
        method="eagle3",
        format=schema.format,
        config=config,
        tensors=tensors | maps,
        notes=tuple(source.notes),
    )


def features_of(source: HeadSource, schema: Eagle3Schema, tensors: Tensors, width: int) -> tuple[int, ...]:
    """Boundaries that enter `fc`; a head of the target's last normed state alone may come without `fc`."""
    last_only = (schema.options.get("eagle_config") or {}).get("use_aux_hidden_state") is False
    if last_only and source.reading.feature_layers is None:
        source.notes.append("use_aux_hidden_state is false: it reads the target's last hidden state, after the norm")
        source.note("fc.weight" not in tensors, "no fc: hidden states enter as they are")
        tensors.setdefault("fc.weight", torch.eye(width, dtype=tensors["lm_head.weight"].dtype))
        return (FINAL_NORM,)
    require("fc.weight" in tensors, "tensor fc.weight missing from the head", ModelError)
    count = inferred_count(tensors["fc.weight"].shape, width)
    source.notes.append(f"fc has {count} x {width} inputs: {count} hidden states of the target")
    default = source.target.feature_layers
    return fused_layers(source, count=count, ids=schema.ids, convention=schema.convention, default=default)


def residual_of(source: HeadSource, schema: Eagle3Schema) -> bool:
    said = source.reading.norm_before_residual
    said = schema.options.get("norm_before_residual") if said is None else said
    default = str(schema.normed_residual).lower()
    source.note(said is None, f"no norm_before_residual in the config: {default}, as {schema.format} files mean it")
    return schema.normed_residual if said is None else bool(said)


def norm_output_of(source: HeadSource, schema: Eagle3Schema) -> bool:
    asked, said = source.reading.norm_output, bool(schema.options.get("norm_output"))
    source.note(asked is None and said, NORM_OUTPUT)
    source.note(asked is not None and asked != said, f"norm_output {str(asked).lower()} as asked for")
    return said if asked is None else asked


def norms_of(source: HeadSource, schema: Eagle3Schema, tensors: Tensors) -> dict[str, bool]:
    """Norms before `fc`, told by the weights: engines have dropped the flags."""
    held = {
        "fc_norm": any(name.startswith("fc_norm.") for name in tensors),
        "norm_before_fc": "input_norm.weight" in tensors,
    }
    for flag, here in held.items():
        said = schema.options.get(flag)
        require(here or not said, f"its config says {flag}, yet it holds no such norm", ModelError)
        source.note(here and not said, f"the weights hold the norm of {flag}, the config does not say so: it is used")
    require(not all(held.values()), "it holds the norms of fc_norm and of norm_before_fc; only one can be", ModelError)
    return held


def tell_vocabularies(source: HeadSource, schema: Eagle3Schema, config: Eagle3Config) -> None:
    said = schema.options.get("draft_vocab_size")
    differs = said is not None and said != config.draft_vocabulary
    source.note(differs, f"config says a draft vocabulary of {said}, the weights hold {config.draft_vocabulary}")
    source.note(config.own_embedding, "it carries an embedding of its own")
    fits = config.own_embedding or config.sizes.hidden_size == config.target_hidden_size
    message = f"its hidden size {config.sizes.hidden_size} is not the target's {config.target_hidden_size}"
    require(fits, f"{message} and it carries no embedding", ModelError)
