"""Medusa heads, as Medusa's repository stores them and as vLLM does."""

import re
from collections.abc import Callable

import torch
from torch import Tensor

from foredraft.checkpoints.head import HeadCheckpoint, Tensors
from foredraft.checkpoints.head_output import HeadOutput, WrittenForm
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import counted
from foredraft.checkpoints.tensor_files import MEDUSA_FILES
from foredraft.core.errors import ModelError, require
from foredraft.heads.medusa import MedusaConfig

ORIGINAL, VLLM = "Medusa (medusa_lm_head)", "Medusa (vLLM)"
PREFIX = {ORIGINAL: "medusa_head.", VLLM: "medusa_heads."}
ACCURACIES = "head_accuracies"  # a key of ours: what the static tree is built from

MARK = {
    ORIGINAL: re.compile(r"\d+\.\d+\.(linear\.)?weight"),
    VLLM: re.compile(r"blocks\.\d+\.layers\.\d+\.weight"),
}
KNOWN = {
    ORIGINAL: re.compile(r"\d+\.\d+\.(linear\.weight|linear\.bias|weight)"),
    VLLM: re.compile(r"blocks\.\d+\.layers\.\d+\.(weight|bias)|lm_heads?\.(\d+\.)?weight|token_map"),
}


def holds(source: HeadSource) -> bool:
    return form_of(source) is not None


def form_of(source: HeadSource) -> str | None:
    """Which of the two stores the files are."""
    shorter = {form: [name.removeprefix(PREFIX[form]) for name in source.files.names] for form in PREFIX}
    return next((form for form in PREFIX if any(MARK[form].fullmatch(name) for name in shorter[form])), None)


def found(source: HeadSource, form: str) -> dict[str, str]:
    """Published names of `form`, less their prefix, by the names in the files."""
    known = KNOWN[form]
    names = {name: name.removeprefix(PREFIX[form]) for name in source.files.names}
    return {name: short for name, short in names.items() if known.fullmatch(short)}


def read(source: HeadSource) -> HeadCheckpoint:
    form = form_of(source)
    names = found(source, form)
    others = len(source.files.names) - len(names)
    source.note(others > 0, f"{others} tensors beside those of the heads are not read")
    tensors = {names[name]: tensor for name, tensor in source.files.read(names).items()}
    canonical = CANONICAL[form](source, tensors)
    config = config_of(source, canonical)
    return HeadCheckpoint(
        name=source.name, method="medusa", format=form, config=config, tensors=canonical, notes=tuple(source.notes)
    )


def config_of(source: HeadSource, tensors: Tensors) -> MedusaConfig:
    """Counts come from the weights: published configs say 2 heads of 5."""
    heads, layers = counted(tensors, r"lm_heads\.(\d+)\."), counted(tensors, r"blocks\.0\.(\d+)\.")
    require("lm_heads.0.weight" in tensors, "its first head holds no output layer", ModelError)
    for key, held in (("medusa_num_heads", heads), ("num_heads", heads), ("medusa_num_layers", layers)):
        said = source.config.get(key)
        source.note(said not in (None, held), f"config says {key} {said}, the weights hold {held}")
    draft, width = tensors["lm_heads.0.weight"].shape
    source.require_width(width)
    vocabulary = source.config.get("vocab_size") or source.target.vocabulary_rows
    source.require_vocabulary(vocabulary)
    mapped = draft == vocabulary or "target_ids" in tensors
    require(mapped, f"its heads have {draft} rows for a vocabulary of {vocabulary} and no token_map", ModelError)
    return MedusaConfig(
        hidden_size=width,
        vocabulary=vocabulary,
        heads=heads,
        layers=layers,
        bias="blocks.0.0.linear.bias" in tensors,
        draft_vocabulary=draft,
        accuracies=tuple(tuple(map(float, ranks)) for ranks in source.config.get(ACCURACIES) or ()),
    )


def from_original(source: HeadSource, tensors: Tensors) -> Tensors:
    """`{head}.{layer}.linear.*`, then `{head}.{layers}.weight`."""
    last = {int(name.split(".")[0]): int(name.split(".")[1]) for name in tensors if name.count(".") == 2}
    blocks = {name: tensor for name, tensor in tensors.items() if name.count(".") == 3}
    shared = {}
    for head, layers in last.items():
        for layer in range(1, layers):
            parts = [name for name in blocks if name.startswith(f"{head}.0.")]
            absent = {f"{head}.{layer}.{name.split('.', 2)[2]}": blocks[name] for name in parts}
            shared |= {name: tensor for name, tensor in absent.items() if name not in blocks}
    source.note(bool(shared), "later residual blocks are the first one again: the file holds it once")
    named = {f"blocks.{name}": tensor for name, tensor in (blocks | shared).items()}
    return named | {f"lm_heads.{head}.weight": tensors[f"{head}.{layers}.weight"] for head, layers in last.items()}


def from_vllm(source: HeadSource, tensors: Tensors) -> Tensors:
    """`blocks.{head}.layers.{layer}.*`, `lm_heads.{head}.weight`, one output layer for all where they share it."""
    ids = tensors.pop("token_map", None)
    heads = counted(tensors, r"blocks\.(\d+)\.")
    blocks = {n: tensor for n, tensor in tensors.items() if n.startswith("blocks.")}
    named = {re.sub(r"\.layers\.(\d+)\.", r".\1.linear.", n): tensor for n, tensor in blocks.items()}
    one = tensors.get("lm_head.weight", tensors.get("lm_heads.0.weight"))
    shared = bool(source.config.get("original_lm_head")) and one is not None
    source.note(shared, "its heads share one output layer")
    outputs = {f"lm_heads.{head}.weight": one for head in range(heads)} if shared else less(tensors, blocks)
    return named | mapped(source, outputs, ids)


def mapped(source: HeadSource, outputs: Tensors, ids: Tensor | None) -> Tensors:
    """Output layers over the reduced vocabulary, and the target ids of their rows."""
    if ids is None:
        return outputs
    ids, rows = ids.to(torch.int64), source.target.vocabulary_rows
    require(bool(((ids >= 0) & (ids < rows)).all()), f"token_map leads out of a vocabulary of {rows}", ModelError)
    require(len(ids.unique()) == len(ids), "token_map names a token twice", ModelError)
    if len(ids) == rows:
        require(bool((ids == torch.arange(rows)).all()), "token_map moves ids, yet it names every token", ModelError)
        return outputs
    whole = any(len(weight) > len(ids) for weight in outputs.values())
    source.note(whole, f"output layers are whole: the {len(ids)} rows of token_map are kept")
    kept = {name: weight[ids] if len(weight) > len(ids) else weight for name, weight in outputs.items()}
    return kept | {"target_ids": ids}


def less(tensors: Tensors, others: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in others}


CANONICAL: dict[str, Callable[[HeadSource, Tensors], Tensors]] = {ORIGINAL: from_original, VLLM: from_vllm}


def write_original(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, MedusaConfig)
    reduced = f"Medusa's own layout has no token map for a draft vocabulary of {config.draft_vocabulary}"
    require(config.draft_vocabulary == config.vocabulary, f"{reduced}; format medusa-vllm has one")
    names = {f"lm_heads.{i}.weight": f"{i}.{config.layers}.weight" for i in range(config.heads)}
    tensors = {names.get(name, name.removeprefix("blocks.")): tensor for name, tensor in head.tensors.items()}
    values = {
        "medusa_num_heads": config.heads,
        "medusa_num_layers": config.layers,
        "base_model_name_or_path": output.target_name,
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocabulary,
        **measured(config),
    }
    return WrittenForm(config=values, tensors=tensors, file=MEDUSA_FILES[0])


def write_vllm(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, MedusaConfig)
    published = {name: re.sub(r"^blocks\.(\d+)\.(\d+)\.linear", r"blocks.\1.layers.\2", name) for name in head.tensors}
    published |= {"target_ids": "token_map"}
    prefix = {name: PREFIX[VLLM] if name.startswith("blocks.") else "" for name in head.tensors}
    values = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocabulary,
        "truncated_vocab_size": config.draft_vocabulary,
        "num_heads": config.heads,
        "num_hidden_layers": config.layers,
        "medusa_fc_bias": config.bias,
        "original_lm_head": False,
        **measured(config),
    }
    tensors = {prefix[name] + published[name]: tensor for name, tensor in head.tensors.items()}
    return WrittenForm(config=values, tensors=tensors)


def measured(config: MedusaConfig) -> dict:
    return {ACCURACIES: [list(ranks) for ranks in config.accuracies]} if config.accuracies else {}
