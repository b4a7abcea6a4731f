"""From a folder, a hub id or an embedded name to a transformers module that runs through our attention function."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from huggingface_hub import constants, get_session, snapshot_download
from huggingface_hub.errors import HTTPError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PretrainedConfig
from transformers.utils import logging

from foredraft.core.errors import ModelError, require
from foredraft.core.vocabulary import Vocabulary
from foredraft.model.attention import NAME
from foredraft.model.capability import Capability, capability_of
from foredraft.model.int8_weights import INT8_FILE, read_int8

EMBEDDED = ("tiny", "tiny-draft")
EMBEDDED_DRAFTS = {"tiny": "tiny-draft"}  # the draft model of an embedded target
HUB_SECONDS = 5
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
    path = find_path(name)
    try:
        config = AutoConfig.from_pretrained(path)
    except LOAD_ERRORS as error:
        raise ModelError(f"cannot read the config of model {name!r}: {first_line(error)}") from None
    return Checkpoint(name=name, path=path, config=config, **class_and_capability(config, name))


def find_path(name: str) -> str:
    """Folder of `name`, or its hub id where it must be fetched. Raises `ModelError` when it is neither."""
    path = str(embedded_folder(name)) if name in EMBEDDED else name
    if Path(path).is_dir():
        require((Path(path) / "config.json").is_file(), f"model folder {name!r} holds no config.json", ModelError)
        return path
    hub_id = not Path(path).is_absolute() and not path.startswith((".", "~")) and path.count("/") == 1
    known = ", ".join(EMBEDDED)
    require(hub_id, f"no model at {name!r}: not a folder, a hub id (owner/name) or one of {known}", ModelError)
    return path if hub_answers() else cached_folder(name)


def hub_answers() -> bool:
    """Whether the hub can be reached; asked once, because each of its own requests would be tried for many seconds."""
    try:
        get_session().head(constants.ENDPOINT, timeout=HUB_SECONDS)
    except (HTTPError, OSError):
        return False
    return True


def cached_folder(name: str) -> str:
    try:
        return snapshot_download(name, local_files_only=True)
    except (OSError, ValueError):
        raise ModelError(f"no model at {name!r}: no such folder, the hub is out of reach, no copy is cached") from None


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
        with quiet_transformers():
            module = read_weights(checkpoint, dtype)
    except LOAD_ERRORS as error:
        raise ModelError(f"cannot load model {checkpoint.name!r}: {first_line(error)}") from None
    return module.to(device).eval().requires_grad_(False)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep back transformers' tables of tensors: what is wrong with them is raised in one line."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def read_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> nn.Module:
    int8 = Path(checkpoint.path) / INT8_FILE
    if int8.exists():
        module = AutoModelForCausalLM.from_config(checkpoint.config, dtype=dtype, attn_implementation=NAME)
        fill(module, read_int8(int8, dtype))
        return module
    module, report = AutoModelForCausalLM.from_pretrained(
        checkpoint.path,
        dtype=dtype,
        attn_implementation=NAME,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # told below, by name
    )
    refuse_missing(report["missing_keys"])
    for name, stored, wanted in sorted(report["mismatched_keys"]):
        raise ValueError(f"tensor {name} is {list(stored)}; the config makes it {list(wanted)}")
    return module


def fill(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy `state` into `module`; a tensor may be left out where it is tied to one that is there."""
    report = module.load_state_dict(state, strict=False)
    if report.unexpected_keys:
        raise ValueError(f"the checkpoint holds a tensor the model has not: {report.unexpected_keys[0]}")
    own = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
    filled = {own[name].data_ptr() for name in state}
    refuse_missing(name for name in report.missing_keys if own[name].data_ptr() not in filled)


def refuse_missing(names: Iterable[str]) -> None:
    missing = sorted(names)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"tensor {missing[0]}{more} missing from the checkpoint")


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
