"""From a folder, a hub id or an embedded name to a drafter's head in canonical form."""

from pathlib import Path

from huggingface_hub import snapshot_download

from foredraft.checkpoints import dflash_layout, eagle_layout, medusa_files, mtp_tensors, speculators
from foredraft.checkpoints.head import HeadCheckpoint, HeadReading
from foredraft.checkpoints.head_source import HeadSource, head_folder, text_config
from foredraft.checkpoints.tensor_files import TensorFiles, json_of
from foredraft.core.errors import ConfigError, ModelError, require
from foredraft.heads.build import check_tensors
from foredraft.model.capability import Capability

# The target each embedded head was trained for, and its method; the first of a pair is its default.
EMBEDDED_HEADS = {
    "tiny-eagle3": ("tiny", "eagle3"),
    "tiny-eagle3-reasoning": ("tiny", "eagle3"),
    "tiny-medusa": ("tiny", "medusa"),
    "tiny-mtp": ("tiny", "mtp"),
    "tiny-dflash": ("tiny", "dflash"),
}
READERS = (speculators, medusa_files, dflash_layout, mtp_tensors, eagle_layout)  # asked in turn
INSIDE_TARGETS = ("mtp",)  # methods whose head may lie in the target's own checkpoint
CONCERNS = {
    "feature_layers": ("eagle3", "dflash"),
    "layer_ids": ("eagle3", "dflash"),
    "norm_before_residual": ("eagle3",),
    "norm_output": ("eagle3",),
    "feed_normed": ("mtp",),
    "rope_theta": ("eagle", "eagle3", "mtp", "dflash"),
}
FORMATS = "speculators, EAGLE, Medusa, DFlash or MTP tensors"
AS_READ = HeadReading()


def default_head(target_name: str, method: str) -> str | None:
    """The embedded head of an embedded target; none where there is none."""
    return next((name for name, made_for in EMBEDDED_HEADS.items() if made_for == (target_name, method)), None)


def find_head(
    name: str | None,
    *,
    method: str | None,
    target: Capability,
    target_path: str | None = None,
    reading: HeadReading = AS_READ,
) -> HeadCheckpoint:
    """Read the head `name` for `target`.

    Args:
        name: A folder, a hub id or an embedded name. None looks for MTP tensors in the target's own checkpoint.
        method: What the head must be; none takes any.
        target: What it must fit.
        target_path: Where the target lies; its config says what a module of its own leaves out.
        reading: What the files leave open.

    Raises `ConfigError` where a name is needed, `ModelError` where the head cannot be read or does not fit.
    """
    inside = name is None and method in INSIDE_TARGETS and target_path is not None
    require(name is not None or inside, f"{method} needs a head: name its folder, a hub id or an embedded one")
    called = f"{target_path} (the target's own checkpoint)" if inside else name
    folder = folder_of(name, target_path)
    try:
        source = source_of(called, folder, target, target_path, reading)
        require(not inside or mtp_tensors.holds(source), "it holds no MTP tensors; name a head that does", ModelError)
        head = read(source)
        require(method in (None, head.method), f"it is a head of method {head.method}, not {method}", ConfigError)
        refuse_unread(reading, head)
        check_tensors(head.config, head.tensors, besides="layer." if head.layer_of else None)
    except (ModelError, ConfigError) as error:
        raise type(error)(f"head {called!r} cannot be used: {error}") from None
    except (TypeError, KeyError, AttributeError, IndexError) as error:  # values of kinds no reader expects
        raise ModelError(f"head {called!r} cannot be used: its config is not understood: {error}") from None
    return head


def refuse_unread(reading: HeadReading, head: HeadCheckpoint) -> None:
    """Raise `ConfigError` for an option that says nothing about `head`."""
    for name, methods in CONCERNS.items():
        concerned = head.method in methods and not (name == "rope_theta" and head.layer_of)
        given = getattr(reading, name) is not None
        require(concerned or not given, f"{name} says nothing about {head.format} of method {head.method}")


def folder_of(name: str | None, target_path: str | None) -> Path:
    return target_folder(target_path) if name is None else head_folder(name, tuple(EMBEDDED_HEADS))


def source_of(
    called: str, folder: Path, target: Capability, target_path: str | None, reading: HeadReading
) -> HeadSource:
    return HeadSource(
        name=called,
        config=json_of(folder / "config.json"),
        files=TensorFiles(folder),
        target=target,
        target_config={} if target_path is None else text_config(target_folder(target_path)),
        reading=reading,
    )


def read(source: HeadSource) -> HeadCheckpoint:
    reader = next((reader for reader in READERS if reader.holds(source)), None)
    require(reader is not None, f"its files hold no head, none of {FORMATS}", ModelError)
    return reader.read(source)


def target_folder(path: str) -> Path:
    """Where the target's files lie; those of a hub id have been fetched when the target was found."""
    if Path(path).is_dir():
        return Path(path)
    try:
        return Path(snapshot_download(path, local_files_only=True))
    except (OSError, ValueError):
        raise ModelError(f"the target's files are not at {path!r}") from None


def holds_head(name: str | None, *, target: Capability, target_path: str | None = None) -> bool:
    """Whether `name`, or without one the target's own checkpoint, holds a head, one that fits or not."""
    try:
        source = source_of(name or "", folder_of(name, target_path), target, target_path, AS_READ)
    except ModelError:
        return False
    return any(reader.holds(source) for reader in READERS)
