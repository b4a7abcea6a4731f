"""The folder of a run: the finished drafter on top, what training needs to go on under `run/`."""

import json
import shutil
from pathlib import Path
from typing import Any

from foredraft.core.errors import require
from foredraft.core.replaced_file import replace_text
from foredraft.training.checkpointing import Checkpoints
from foredraft.training.methods.method import Method

IDENTITY, PROVENANCE = "run.json", "provenance.json"


class RunFolder:
    """Where a run lives.

    Attributes:
        path: As given.
        checkpoints: Its saved states.
    """

    def __init__(self, path: Path):
        self.path, self.inner = path, path / "run"
        self.checkpoints = Checkpoints(self.inner / "states")

    def require_fitting(self, identity: dict[str, Any]) -> None:
        """Raise `ConfigError` unless the folder is new, empty, or holds the run that `identity` describes."""
        known = self.inner / IDENTITY
        if not known.exists():
            free = not self.path.exists() or (self.path.is_dir() and not any(self.path.iterdir()))
            require(free, f"output {str(self.path)!r} holds other files; give a new or an empty folder")
            return
        before, now = flat(json.loads(known.read_text(encoding="utf-8"))), flat(json.loads(json.dumps(identity)))
        for key in sorted({*before, *now}):
            same = before.get(key) == now.get(key)
            place = f"output {str(self.path)!r} holds a run with {key} {before.get(key)!r}, not {now.get(key)!r}"
            require(same, f"{place}; give another folder to start anew, or the same options to go on")

    def begin(self, identity: dict[str, Any]) -> None:
        """Remember which run this is. Raises `ConfigError` where the folder cannot be made."""
        try:
            self.inner.mkdir(parents=True, exist_ok=True)
            write_json(self.inner / IDENTITY, identity)
        except OSError as error:
            require(False, f"cannot write to output {str(self.path)!r}: {error.strerror}")

    @property
    def finished(self) -> bool:
        return (self.path / PROVENANCE).exists()

    def finish(self, method: Method, target_name: str, facts: dict[str, Any]) -> None:
        """Put the drafter in place, a file at a time by renaming; `provenance.json` comes last and says it is whole."""
        temporary = self.inner / "drafter"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        method.write(temporary, target_name)
        for file in sorted(temporary.iterdir()):
            file.replace(self.path / file.name)
        temporary.rmdir()
        write_json(self.path / PROVENANCE, facts)


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested values by dotted name."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found


def write_json(path: Path, values: dict[str, Any]) -> None:
    replace_text(path, json.dumps(values, indent=2) + "\n")
