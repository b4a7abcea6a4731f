"""From a folder, a hub id or an embedded name to a transformers module that runs through our attention function."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig

from foredraft.core.errors import ModelError
from foredraft.core.vocabulary import Vocabulary
from foredraft.model.attention import NAME
from foredraft.model.capability import Capability, capability_of
from foredraft.model.int8_weights import INT8_FILE, read_int8

EMBEDDED = ("tiny", "tiny-draft")
LOAD_ERRORS = (OSError, ValueError, KeyError, RuntimeError, SafetensorError, ImportError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A model found, not yet loaded."""

    name: str
    path: str
    config: PretrainedConfig
    model_class: type
    capability: Capability


def find_checkpoint(name: str) -> Checkpoint:
    """Locate `name` and read its config. Raises `ModelError` when it is missing or cannot be run exactly."""
    path = str(embedded_folder(name)) if name in EMBEDDED else name
    if not Path(path).is_dir() and (Path(path).is_absolute() or path.startswith((".", "~")) or path.count("/") != 1):
        raise ModelError(f"no model at {name!r}: not a folder, a hub id (owner/name) or one of {', '.join(EMBEDDED)}")
    try:
        config = AutoConfig.from_pretrained(path)
    except LOAD_ERRORS as error:
        raise ModelError(f"cannot read the config of model {name!r}: {first_line(error)}") from None
    return Checkpoint(name=name, path=path, config=config, **class_and_capability(config, name))


def class_and_capability(config: PretrainedConfig, name: str) -> dict:
    try:
        model_class = AutoModelForCausalLM._model_mapping[type(config)]
    except KeyError:
        raise ModelError(f"model {name!r} is a {config.model_type}, which has no causal language model") from None
    return {"model_class": model_class, "capability": capability_of(model_class, config)}


def embedded_folder(name: str) -> Path:
    return Path(str(files("foredraft") / "assets" / name))


def load_module(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """The model in evaluation mode. Raises `ModelError` when weights are missing, unreadable or of the wrong shape."""
    try:
        module = read_weights(checkpoint, dtype)
    except LOAD_ERRORS as error:
        raise ModelError(f"cannot load model {checkpoint.name!r}: {first_line(error)}") from None
    return module.to(device).eval().requires_grad_(False)


def read_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> nn.Module:
    int8 = Path(checkpoint.path) / INT8_FILE
    if int8.exists():
        module = AutoModelForCausalLM.from_config(checkpoint.config, dtype=dtype, attn_implementation=NAME)
        module.load_state_dict(read_int8(int8, dtype), strict=False, assign=False)
        return module
    module, report = AutoModelForCausalLM.from_pretrained(
        checkpoint.path, dtype=dtype, attn_implementation=NAME, output_loading_info=True
    )
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise ValueError(f"{len(missing)} tensors are missing from the checkpoint, the first is {missing[0]}")
    return module


def load_tokenizer(checkpoint: Checkpoint):
    """The checkpoint's tokenizer. Raises `ModelError` when there is none."""
    try:
        return AutoTokenizer.from_pretrained(checkpoint.path)
    except LOAD_ERRORS as error:
        raise ModelError(f"cannot load the tokenizer of model {checkpoint.name!r}: {first_line(error)}") from None


def vocabulary_of(checkpoint: Checkpoint, tokenizer) -> Vocabulary:
    """Sizes and stop tokens: rows past the tokenizer's last id are padding."""
    rows = checkpoint.capability.vocabulary_rows
    return Vocabulary(rows=rows, size=min(rows, len(tokenizer)), eos_token_ids=eos_of(checkpoint, tokenizer))


def eos_of(checkpoint: Checkpoint, tokenizer) -> tuple[int, ...]:
    """End tokens as transformers' `generate` sees them: the generation config's, else the config's and tokenizer's."""
    try:
        eos = GenerationConfig.from_pretrained(checkpoint.path).eos_token_id
    except OSError:
        eos = checkpoint.config.get_text_config().eos_token_id
    if eos is None:
        eos = tokenizer.eos_token_id
    return () if eos is None else tuple(eos) if isinstance(eos, list) else (eos,)


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
