"""The benchmarks are scripts beside the package; their folder is on the path while they are tested."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)


@pytest.fixture
def entrant_of(tmp_path, monkeypatch):
    """Makes entrants that run a script in a process of its own, with the benchmarks' modules and some arguments."""
    from forward_contestants import HUGGING_FACE, Entrant

    monkeypatch.setenv("PYTHONPATH", BENCHMARKS)
    script = tmp_path / "double.py"

    def make(source: str, name: str, *arguments: str) -> Entrant:
        script.write_text(source)
        return Entrant(name=name, command=[sys.executable, str(script), *arguments], model=HUGGING_FACE)

    return make
