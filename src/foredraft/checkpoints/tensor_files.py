"""Tensors in the files of a checkpoint folder, listed without reading them, read by name."""

import json
import os
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from foredraft.core.errors import ModelError, require
from foredraft.core.replaced_file import replace_text
from foredraft.model.int8_weights import INT8_FILE, read_int8, write_int8
from foredraft.model.loading import LOAD_ERRORS, first_line

WEIGHTS_FILE = "model.safetensors"
MAPS_FILE = "maps.safetensors"  # what int8 weights cannot hold: ids
MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
WHOLE_FILES = (*MEDUSA_FILES, WEIGHTS_FILE, INT8_FILE, "pytorch_model.bin")
READ_ERRORS = (*LOAD_ERRORS, pickle.UnpicklingError, EOFError, AttributeError)


class TensorFiles:
    """The tensors of a folder. Raises `ModelError` where it holds no weights or they cannot be read."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.file_of = listed(folder)

    @property
    def names(self) -> list[str]:
        return list(self.file_of)

    def read(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The tensors `names` in the dtypes they are stored in; those stored as int8 come back in fp32."""
        wanted = list(names)
        read: dict[str, Tensor] = {}
        for path in sorted({self.file_of[name] for name in wanted}):
            here = [name for name in wanted if self.file_of[name] == path]
            read |= carefully(tensors_of, path, here)
        for name in wanted:
            whole = read[name].dtype.itemsize > 1 or not read[name].is_floating_point()
            require(whole, f"tensor {name} is stored as {read[name].dtype}, which is not read", ModelError)
        return {name: read[name] for name in wanted}


def listed(folder: Path) -> dict[str, Path]:
    """The file of each tensor in `folder`."""
    index = next((folder / name for name in INDEX_FILES if (folder / name).is_file()), None)
    medusa = any((folder / name).is_file() for name in MEDUSA_FILES)
    if index is not None and not medusa:
        return indexed(index)
    path = next((folder / name for name in WHOLE_FILES if (folder / name).is_file()), None)
    require(path is not None, f"folder {str(folder)!r} holds no weights: none of {', '.join(WHOLE_FILES)}", ModelError)
    paths = [path, folder / MAPS_FILE] if path.name == INT8_FILE and (folder / MAPS_FILE).is_file() else [path]
    return {name: path for path in paths for name in carefully(names_of, path)}


def indexed(index: Path) -> dict[str, Path]:
    found = {name: index.parent / file for name, file in json_of(index).get("weight_map", {}).items()}
    for path in found.values():
        require(path.is_file(), f"{index.name} names {path.name}, which is not there", ModelError)
    return found


def json_of(path: Path) -> dict:
    """A file of one JSON object. Raises `ModelError` for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path.name}: {first_line(error)}") from None
    require(isinstance(value, dict), f"{path.name} holds no JSON object", ModelError)
    return value


def carefully(reader, path: Path, *arguments):
    try:
        return reader(path, *arguments)
    except READ_ERRORS as error:
        raise ModelError(f"cannot read {path.name}: {first_line(error)}") from None


def names_of(path: Path) -> list[str]:
    if path.suffix != ".safetensors":
        return list(pickled(path))
    with safe_open(path, framework="pt") as file:
        names = list(file.keys())
    if path.name != INT8_FILE:
        return names
    return [name.removesuffix(".int8") for name in names if not name.endswith(".scale")]


def tensors_of(path: Path, names: list[str]) -> dict[str, Tensor]:
    if path.suffix != ".safetensors":
        return pickled(path)
    if path.name == INT8_FILE:
        return read_int8(path, torch.float32)
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in names}


def pickled(path: Path) -> dict[str, Tensor]:
    """A state dict saved by `torch.save`, read without running code of its own."""
    state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    if not isinstance(state, Mapping) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise ValueError("it holds something other than a dictionary of tensors")
    return dict(state)


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, file: str, *, int8: bool = False) -> list[str]:
    """Write `tensors` into `folder`, whole or as int8 weights and a file of ids; returns the names of the files."""
    whole = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    if not int8:
        return [written(whole, folder / file)]
    maps = {name: tensor for name, tensor in whole.items() if not tensor.is_floating_point()}
    write_int8({name: tensor for name, tensor in whole.items() if name not in maps}, folder / INT8_FILE)
    return [INT8_FILE, *([written(maps, folder / MAPS_FILE)] if maps else [])]


def written(tensors: dict[str, Tensor], path: Path) -> str:
    temporary = path.with_name(f"{path.name}.tmp")
    save_file(tensors, temporary, metadata={"format": "pt"})
    os.replace(temporary, path)
    return path.name


def write_json(values: dict, path: Path) -> str:
    replace_text(path, json.dumps(values, indent=2) + "\n")
    return path.name
