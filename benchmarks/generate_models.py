"""The weights of the benchmark of generation in the formats that peers read: written once, used again by later runs."""

import hashlib
from functools import cache
from pathlib import Path

import torch
from forward_contestants import HUGGING_FACE
from forward_models import ModelFiles, once
from plain_model import load_plain
from transformers import AutoTokenizer, PreTrainedModel

from foredraft.model.loading import find_checkpoint


@cache
def model_files(name: str, folder: Path) -> ModelFiles:
    """Model `name` in bf16, in a folder of `folder` whose name tells its weights from others'."""
    module = load_plain(name, torch.bfloat16)
    files = ModelFiles(folder.resolve() / f"{Path(name).name}-{digest(module)}")
    once(files.folder / HUGGING_FACE, lambda place: save(module, name, place))
    return files


def digest(module: PreTrainedModel) -> str:
    """Stands for the weights and the config."""
    found = hashlib.sha256(module.config.to_json_string().encode())
    for name, tensor in module.state_dict().items():
        found.update(name.encode())
        found.update(tensor.contiguous().view(torch.uint8).numpy())
    return found.hexdigest()[:8]


def save(module: PreTrainedModel, name: str, folder: Path) -> None:
    """Weights and tokenizer, which a peer wants though it is only handed token ids."""
    module.save_pretrained(folder)
    AutoTokenizer.from_pretrained(find_checkpoint(name).path).save_pretrained(folder)
