"""Where a head is read from, and what it must fit."""

from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import snapshot_download

from foredraft.checkpoints.head import HeadReading
from foredraft.checkpoints.tensor_files import TensorFiles, json_of
from foredraft.core.errors import ModelError, require
from foredraft.model.capability import Capability
from foredraft.model.loading import embedded_folder, find_path

HEAD_FILES = ("*.json", "*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSource:
    """The files of a head and the target it is read for.

    Attributes:
        name: As given.
        config: Of the folder, as it stands in its JSON file.
        files: Its tensors.
        target: What it must fit.
        target_config: The target's own config, of its text part; empty where nobody said where the target lies.
        reading: What the caller said about the file.
        notes: Decisions taken while reading, in order.
    """

    name: str
    config: dict
    files: TensorFiles
    target: Capability
    target_config: dict
    reading: HeadReading
    notes: list[str] = field(default_factory=list)

    def note(self, condition: bool, text: str) -> None:
        """Tell `text` where `condition` holds."""
        if condition:
            self.notes.append(text)

    def require_vocabulary(self, rows: int) -> None:
        """Raise `ModelError` unless the head was made for as many tokens as the target's logits have rows."""
        wanted = self.target.vocabulary_rows
        message = f"it was made for a vocabulary of {rows}; the target's logits have {wanted} rows"
        require(rows == wanted, message, ModelError)

    def require_width(self, width: int) -> None:
        wanted = self.target.hidden_size
        message = f"it was made for hidden states of width {width}; the target's have {wanted}"
        require(width == wanted, message, ModelError)


def head_folder(name: str, embedded: tuple[str, ...]) -> Path:
    """The folder of the head `name`, fetched where it is a hub id. Raises `ModelError` where there is none."""
    folder = embedded_folder(name) if name in embedded else Path(name)
    if not folder.is_dir():
        folder = fetched(name, embedded)
    require((folder / "config.json").is_file(), f"folder {str(folder)!r} holds no config.json", ModelError)
    return folder


def fetched(name: str, embedded: tuple[str, ...]) -> Path:
    there = ", ".join(head for head in embedded if embedded_folder(head).is_dir())
    unknown = f"no head {name!r}: neither a folder, a hub id that can be reached or is cached"
    unknown += f", nor one of {there}" if there else ""
    try:
        path = find_path(name)
        return Path(path) if Path(path).is_dir() else Path(snapshot_download(path, allow_patterns=list(HEAD_FILES)))
    except (OSError, ValueError):  # a ModelError is a ValueError too
        raise ModelError(unknown) from None


def text_config(folder: Path) -> dict:
    """The config of a model's text part."""
    config = json_of(folder / "config.json")
    return config | config["text_config"] if isinstance(config.get("text_config"), dict) else config
