"""Writes a head in a published format."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foredraft.checkpoints import dflash_layout, eagle_layout, medusa_files, speculators
from foredraft.checkpoints.head import HeadCheckpoint, Tensors
from foredraft.checkpoints.head_output import HeadOutput, WrittenForm
from foredraft.checkpoints.tensor_files import write_json, write_tensors
from foredraft.core.errors import require
from foredraft.core.speculation_config import one_of
from foredraft.heads.build import check_tensors
from foredraft.heads.dflash import DFlashConfig
from foredraft.heads.eagle import Eagle3Config, EagleConfig
from foredraft.heads.medusa import MedusaConfig
from foredraft.heads.mtp import MtpConfig

Writer = Callable[[HeadCheckpoint, HeadOutput], WrittenForm]
WRITERS: dict[str, dict[type, Writer]] = {
    "speculators": {
        Eagle3Config: speculators.write_eagle3,
        DFlashConfig: speculators.write_dflash,
        MtpConfig: speculators.write_mtp,
    },
    "eagle": {EagleConfig: eagle_layout.write_eagle, Eagle3Config: eagle_layout.write_eagle3},
    "medusa": {MedusaConfig: medusa_files.write_original},
    "medusa-vllm": {MedusaConfig: medusa_files.write_vllm},
    "dflash": {DFlashConfig: dflash_layout.write},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenHead:
    """A head on disk.

    Attributes:
        folder: It lies in.
        files: Their names, the config last.
        notes: What a user of the format should know.
    """

    folder: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]


def write_head(
    head: HeadCheckpoint,
    folder: Path | str,
    *,
    format: str,
    target_name: str,
    target_architectures: list[str],
    speculative_tokens: int,
    target_layers: int | None = None,
    int8: bool = False,
) -> WrittenHead:
    """Write `head` into `folder`, the config last; reading it back gives equal tensors and an equal config.

    Args:
        format: speculators, eagle, medusa, medusa-vllm or dflash.
        target_name, target_architectures, target_layers: Of the target, for the config.
        speculative_tokens: Drafts a step, for the config.
        int8: Store weights as foredraft's int8 files, which no other engine reads; rounds them.

    Raises `ConfigError` for a format that cannot hold the head.
    """
    writer = writer_of(head, format)
    check_tensors(head.config, head.tensors, besides="layer." if head.layer_of else None)
    output = HeadOutput(
        target_name=target_name,
        target_architectures=target_architectures,
        target_layers=target_layers,
        speculative_tokens=speculative_tokens,
    )
    form = writer(head, output)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    files = write_tensors(form.tensors, folder, form.file, int8=int8)
    files.append(write_json(form.config | dtype_of(form.tensors), folder / "config.json"))
    return WrittenHead(folder=folder, files=tuple(files), notes=form.notes)


def writer_of(head: HeadCheckpoint, format: str) -> Writer:
    one_of("format", format, tuple(WRITERS))
    fitting = ", ".join(name for name, writers in WRITERS.items() if type(head.config) in writers)
    message = f"format {format!r} cannot hold a head of method {head.method}; formats that can: {fitting}"
    require(type(head.config) in WRITERS[format], message)
    return WRITERS[format][type(head.config)]


def dtype_of(tensors: Tensors) -> dict[str, str]:
    dtype = next(tensor.dtype for tensor in tensors.values() if tensor.is_floating_point())
    return {"torch_dtype": str(dtype).removeprefix("torch.")}
