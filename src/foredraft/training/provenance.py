"""Where a trained drafter comes from: command, code, versions, data."""

import hashlib
import importlib.metadata
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from foredraft import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
PIECE = 1 << 20


def provenance(data: Iterable[Path], **facts: Any) -> dict[str, Any]:
    """What `provenance.json` says: `facts`, and what every run of the same command can be compared by."""
    return {
        "command": sys.argv,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "foredraft": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "data": data_hashes(data),
        **facts,
    }


def data_hashes(paths: Iterable[Path]) -> dict[str, str]:
    """SHA-256 of each file by its path as given."""
    return {str(path): file_hash(Path(path)) for path in paths}


def file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def commit() -> str | None:
    """The commit of the source tree this runs from, `+changes` after it where files differ; none outside one."""
    folder = Path(__file__).parent
    try:
        git(folder, "ls-files", "--error-unmatch", Path(__file__).name)  # an installed copy may lie in another's tree
        name = git(folder, "rev-parse", "HEAD")
        changed = git(folder, "status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}+changes" if changed else name


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
