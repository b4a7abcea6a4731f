"""What is known of a target on this machine, kept on disk: one record a kind for the next start."""

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from foredraft.core.kept_file import KeptFile
from foredraft.core.speculation_config import AUTO
from foredraft.engine.cost_measuring import REQUESTS, contexts
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_runtime import extension_version
from foredraft.model.target import ModelTarget, Target

CPU_FACTS = Path("/proc/cpuinfo")


def stored(kind: str, target: Target) -> Any:
    """The record of a kind for `target`; none where there is nothing, or nothing of ours."""
    circumstances = circumstances_of(target)
    if circumstances is None:
        return None
    try:
        file = file_of(kind, circumstances).read()
        return file[kind] if file["measured"] == circumstances else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def store(kind: str, record: Any, target: Target) -> None:
    """Write a record to disk; a folder that cannot be written costs a warning, and beginning anew at the next start."""
    circumstances = circumstances_of(target)
    if circumstances is None:
        return
    record = {"measured": circumstances, kind: record}
    file_of(kind, circumstances).write(record, f"nothing is kept for the next start ({kind})")


def file_of(kind: str, circumstances: dict[str, Any]) -> KeptFile:
    return KeptFile(kind, json.dumps(circumstances, sort_keys=True))


def circumstances_of(target: Target) -> dict[str, Any] | None:
    """Everything that decides what a step costs and what drafts are worth; none for a target whose name does not tell
    its speed."""
    if not isinstance(target, ModelTarget) or target.path is None:
        return None
    model, folder = target.model, Path(target.path)
    return {
        "model": str(folder.resolve()) if folder.is_dir() else target.path,
        "weight bytes": model.weight_bytes,
        "shape": json.loads(json.dumps(asdict(model.capability))),
        "dtype": str(model.dtype),
        "draft weights": target.place.for_drafts(AUTO, model.dtype).weights,
        "path": model.path,
        **({"native": extension_version()} if isinstance(model.decoder, NativeDecoder) else {}),
        "threads": torch.get_num_threads(),
        "processor": processor_name(target.place.torch_device),
        "torch": torch.__version__,
        "contexts": {str(requests): list(contexts(target, requests)) for requests in REQUESTS},
    }


def processor_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's with its number of cores."""
    if device.type != "cpu":
        return torch.cuda.get_device_name(device)
    try:
        lines = CPU_FACTS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"
