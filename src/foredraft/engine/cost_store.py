"""Keeps measured step costs on disk: a model is measured once on a machine."""

import json
import os
import platform
import warnings
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foredraft.core.cache_folder import cache_folder
from foredraft.core.replaced_file import replace_text
from foredraft.core.speculation_config import AUTO, SpeculationConfig
from foredraft.engine.cost_measuring import REQUESTS, contexts, measured_costs, measured_drafts
from foredraft.engine.step_costs import StepCosts, option_label
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_runtime import extension_version
from foredraft.model.target import ModelTarget, Target

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

CPU_FACTS = Path("/proc/cpuinfo")


def ready_costs(engine: "Engine", options: Sequence[SpeculationConfig], *, seconds: float = 3.0) -> StepCosts:
    """Costs of the idle `engine` with each of `options`: read from disk, and measured in `seconds` where missing.

    What was measured is written back. Raises `UserError` kinds where a drafter cannot be made.
    """
    known = stored_costs(engine.target)
    if known is None:
        return renewed_costs(engine, options, seconds=seconds)
    missing = [config for config in options if known.draft_seconds(option_label(config), 1) is None]
    if not missing:
        return known
    costs = replace(known, drafts=known.drafts | measured_drafts(engine, missing, seconds=seconds))
    store(costs, engine.target)
    return costs


def renewed_costs(engine: "Engine", options: Sequence[SpeculationConfig], *, seconds: float) -> StepCosts:
    """Costs measured now, in `seconds`, and written to disk; drafters known there and not in `options` stay known."""
    costs = measured_costs(engine, options, seconds=seconds)
    known = stored_costs(engine.target)
    kept = replace(costs, drafts=known.drafts | costs.drafts) if known else costs
    store(kept, engine.target)
    return kept


def stored_costs(target: Target) -> StepCosts | None:
    """What is on disk for `target`; none where there is nothing, or nothing of ours."""
    circumstances = circumstances_of(target)
    if circumstances is None:
        return None
    try:
        record = json.loads(place_of(circumstances).read_text(encoding="utf-8"))
        return StepCosts.from_record(record["costs"]) if record["measured"] == circumstances else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def store(costs: StepCosts, target: Target) -> None:
    """Write `costs` to disk; a folder that cannot be written costs a warning, and a measurement at the next start."""
    circumstances = circumstances_of(target)
    if circumstances is None:
        return
    place = place_of(circumstances)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        replace_text(place, json.dumps({"measured": circumstances, "costs": costs.record()}, indent=1) + "\n")
    except OSError as error:
        warnings.warn(f"step costs are not kept for the next start: {error}", stacklevel=2)


def place_of(circumstances: dict[str, Any]) -> Path:
    digest = sha256(json.dumps(circumstances, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "costs" / f"{digest[:24]}.json"


def circumstances_of(target: Target) -> dict[str, Any] | None:
    """Everything that decides what a step costs; none for a target whose speed its name does not tell."""
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
