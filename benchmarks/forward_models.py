"""The files that contestants of the benchmark of the forward read: written once, and used again by later runs."""

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

from forward_contestants import GGUF, HERE, HUGGING_FACE, OPENVINO_FOLDER, ContestantFailure, Entrant, last_line
from forward_shapes import REFERENCE_FILE, SPREAD, Shape, write_model

SCRIPTS = {GGUF: "forward_gguf.py", OPENVINO_FOLDER: "forward_openvino_export.py"}


class ModelFiles:
    """A model in the formats that contestants read, in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def prepare_for(self, entrant: Entrant) -> None:
        """Translate the weights where the entrant reads another format. Raises `ContestantFailure`."""
        if entrant.model not in SCRIPTS:
            return
        script, source = HERE / SCRIPTS[entrant.model], self.folder / HUGGING_FACE
        once(self.folder / entrant.model, lambda place: run([entrant.command[0], script, source, place]))

    def of(self, entrant: Entrant) -> str:
        return str(self.folder / entrant.model)


class Models(ModelFiles):
    """The files of one shape.

    Attributes:
        shape, seed: Which weights.
    """

    def __init__(self, name: str, shape: Shape, seed: int, folder: Path):
        """In a folder of `folder` whose name tells them from those of another shape, seed or spread."""
        digest = hashlib.sha256(f"{shape} {SPREAD}".encode()).hexdigest()[:8]
        super().__init__(folder.resolve() / f"{name}-seed-{seed}-{digest}")
        self.shape, self.seed = shape, seed

    def prepare(self, entrants: Iterable[Entrant]) -> dict[str, str]:
        """Write what is missing; returns why some entrants have nothing to read."""
        once(self.folder / HUGGING_FACE, lambda place: write_model(self.shape, self.seed, place))
        left_out = {}
        for entrant in entrants:
            try:
                self.prepare_for(entrant)
            except ContestantFailure as failure:
                left_out[entrant.name] = str(failure)
        return left_out

    def reference(self) -> dict[str, list]:
        """Tokens, and the logits of the weights in fp32 behind them."""
        return json.loads((self.folder / HUGGING_FACE / REFERENCE_FILE).read_text())


def once(place: Path, write: Callable[[Path], None]) -> None:
    """Have `place` written unless it is there; a broken run leaves nothing under its name."""
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_name(f"unfinished-{place.name}")
    if fresh.is_dir():
        shutil.rmtree(fresh)
    write(fresh)
    fresh.replace(place)


def run(command: list) -> None:
    """Raises `ContestantFailure` where it fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    if done.returncode:
        raise ContestantFailure(f"{Path(command[1]).name} failed: {last_line(done.stderr)}")
