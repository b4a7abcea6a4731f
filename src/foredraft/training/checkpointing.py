"""What a run needs to go on where it stopped, kept so that no crash leaves a half-written file behind."""

import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch

from foredraft.core.errors import ConfigError
from foredraft.model.loading import first_line

KEPT = 2
BROKEN_PICKLE = (pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError)
READ_ERRORS = (OSError, RuntimeError, *BROKEN_PICKLE)
NAME = re.compile(r"step-(\d+)\.pt")


class Checkpoints:
    """The states of a run in a folder, `step-00000042.pt` after 42 steps; the last two are kept.

    All randomness of a run is a function of its seed and the step, so that a state holds no generator's.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    def save(self, step: int, state: dict[str, Any]) -> str | None:
        """Write the state after `step` steps under a temporary name, then rename it.

        Returns why it could not be written, in one line, where the disk refused; what was kept before stays.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"step-{step:08d}.pt"
        temporary = path.with_suffix(".tmp")
        try:
            with temporary.open("wb") as file:
                torch.save({"step": step, **state}, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except (OSError, RuntimeError) as error:
            temporary.unlink(missing_ok=True)
            last = self.last_step()
            kept = f"the state after step {last} stays" if last is not None else "no earlier state exists"
            return f"cannot save the state after step {step}: {first_line(error)}; {kept}"
        for old in self.paths()[:-KEPT]:
            old.unlink()
        return None

    def paths(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*.pt") if NAME.fullmatch(path.name))

    def last_step(self) -> int | None:
        """Steps of the newest state; none where there is none."""
        paths = self.paths()
        return int(NAME.fullmatch(paths[-1].name)[1]) if paths else None

    def load(self, device: torch.device) -> dict[str, Any] | None:
        """The newest state, none where there is none. Raises `ConfigError` where it cannot be read."""
        for torn in self.folder.glob("*.tmp"):
            torn.unlink()
        paths = self.paths()
        if not paths:
            return None
        try:
            return torch.load(paths[-1], map_location=device, weights_only=True)
        except READ_ERRORS as error:
            message = f"cannot read {paths[-1]}: {first_line(error)}; delete it to go on from the state before it"
            raise ConfigError(message) from None
