"""The layout of EAGLE's own repository, which SGLang loads: heads of EAGLE-1, EAGLE-2 and EAGLE-3."""

import re

import torch
from torch import Tensor

from foredraft.checkpoints.eagle3_head import Eagle3Schema, canonical, eagle3_head, plain_tensors
from foredraft.checkpoints.feature_layers import BOUNDARIES, OUTPUTS, SHIFT, likely_convention
from foredraft.checkpoints.head import HeadCheckpoint, Tensors
from foredraft.checkpoints.head_output import HeadOutput, WrittenForm
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import config_of, counted, sizes_of
from foredraft.heads.eagle import Eagle3Config, EagleConfig
from foredraft.model.features import FINAL_NORM

FORMAT = "EAGLE layout"
IDS_ARE = "layer_ids_are"  # a key of ours in eagle_config: which of the two conventions the ids follow
BORROWED = ("embed_tokens.weight", "lm_head.weight")


def holds(source: HeadSource) -> bool:
    names = {canonical(name) for name in source.files.names}
    return "layers.0.self_attn.q_proj.weight" in names and bool({"fc.weight", "layers.0.hidden_norm.weight"} & names)


def read(source: HeadSource) -> HeadCheckpoint:
    joined = any(canonical(name) == "layers.0.hidden_norm.weight" for name in source.files.names)
    return read_eagle3(source) if joined else read_eagle(source)


def read_eagle3(source: HeadSource) -> HeadCheckpoint:
    eagle = source.config.get("eagle_config") or {}
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") or source.config.get("eagle_aux_hidden_state_layer_ids")
    said = eagle.get(IDS_ARE)
    convention = said if said in SHIFT or not ids else likely_convention(ids, source.target)
    schema = Eagle3Schema(
        format=FORMAT,
        options=source.config,
        layer=source.config,
        ids=ids,
        convention=convention or BOUNDARIES,
        normed_residual=False,
    )
    return eagle3_head(source, schema, plain_tensors(source))


def read_eagle(source: HeadSource) -> HeadCheckpoint:
    """An EAGLE-1 or EAGLE-2 head: they share one, and its config says nothing of the tree."""
    copies = [name for name in source.files.names if canonical(name) in BORROWED]
    source.note(bool(copies), f"{', '.join(copies)}: copies of the target's own, not read")
    tensors = plain_tensors(source, lambda name: name not in BORROWED)
    sizes = sizes_of(source, source.config, tensors)
    source.require_width(sizes.hidden_size)
    vocabulary = source.config.get("vocab_size") or source.target.vocabulary_rows
    source.require_vocabulary(vocabulary)
    config = EagleConfig(
        sizes=sizes,
        vocabulary=vocabulary,
        layers=counted(tensors, r"layers\.(\d+)\."),
        bias=bias_of(source, tensors),
    )
    return HeadCheckpoint(
        name=source.name, method="eagle", format=FORMAT, config=config, tensors=tensors, notes=tuple(source.notes)
    )


def bias_of(source: HeadSource, tensors: Tensors) -> bool:
    """Whether `fc` has a bias: the config's word, where none is given yes, unless the weights say otherwise."""
    held, said = "fc.bias" in tensors, source.config.get("bias")
    source.note(said is None and held, "no bias in the config: fc has one, as such heads do")
    source.note(said is None and not held, "no bias in the config and no fc.bias: fc has none")
    source.note(said is False and held, "config says fc has no bias, the weights hold one: it is used")
    return held or bool(said)


def write_eagle(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, EagleConfig)
    values = config_of(config.sizes, layers=config.layers, vocabulary=config.vocabulary)
    values |= {"architectures": ["LlamaForCausalLMEagle"], "bias": config.bias}
    return WrittenForm(config=values, tensors=head.tensors)


def write_eagle3(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, Eagle3Config)
    values = config_of(config.sizes, layers=config.layers, vocabulary=config.vocabulary) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": config.draft_vocabulary,
        "target_hidden_size": config.target_hidden_size,
        "norm_before_residual": config.norm_before_residual,
        "fc_norm": config.fc_norm,
        "norm_before_fc": config.norm_before_fc,
        "norm_output": config.norm_output,
        "eagle_config": eagle_config(config),
    }
    tensors = {re.sub(r"^layers\.0\.", "midlayer.", name): tensor for name, tensor in head.tensors.items()}
    if config.feature_layers == (FINAL_NORM,) and is_identity(tensors["fc.weight"]):
        tensors.pop("fc.weight")  # engines know such heads without one
    return WrittenForm(config=values, tensors=tensors)


def is_identity(weight: Tensor) -> bool:
    return torch.equal(weight, torch.eye(*weight.shape, dtype=weight.dtype, device=weight.device))


def eagle_config(config: Eagle3Config) -> dict:
    """Layer ids as SGLang counts them: outputs of layers."""
    if config.feature_layers == (FINAL_NORM,):
        return {"use_aux_hidden_state": False}
    ids = [layer - SHIFT[OUTPUTS] for layer in config.feature_layers]
    return {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids, IDS_ARE: OUTPUTS}
