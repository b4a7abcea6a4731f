"""What a result file says of how it came to be: command, code, versions, machine."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8")
BANDWIDTH_BYTES = 1 << 28  # far more than any last-level cache
BANDWIDTH_REPEATS = 7


def provenance() -> dict:
    return {
        "command": " ".join([Path(sys.executable).name, *sys.argv]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": git("rev-parse", "HEAD"),
        "changed_files": (git("status", "--porcelain") or "").splitlines(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "hardware": hardware(),
    }


def git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def hardware() -> dict:
    """The CPU by name, cores and the matrix extensions it reports; empty names where /proc does not tell."""
    fields = cpu_fields()
    flags = fields.get("flags", "").split()
    return {
        "cpu": fields.get("model name", platform.processor()),
        "cores": os.cpu_count(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "load_average": os.getloadavg(),
    }


def cpu_fields() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def read_bandwidth() -> float:
    """Bytes a second that all of torch's threads read from memory together: the best of several sums."""
    numbers = torch.ones(BANDWIDTH_BYTES // 4)
    times = []
    for _ in range(BANDWIDTH_REPEATS):
        start = perf_counter()
        numbers.sum()
        times.append(perf_counter() - start)
    return BANDWIDTH_BYTES / min(times)
