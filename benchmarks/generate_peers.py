"""Peers of the benchmark of generation that run in processes and environments of their own. Settings are data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contestants import FOREDRAFT, TRANSFORMERS, Contestant, Sample
from forward_contestants import HERE, LLAMA, OPENVINO, ContestantFailure, Entrant, Worker, entrants
from generate_models import model_files

from foredraft.core.errors import require

OURS = "foredraft"
SCRIPTS = {LLAMA: "generate_llama.py", OPENVINO: "generate_openvino.py"}
# 10 tokens looked up is llama-cpp-python's default, 2 what it advises for a CPU; llama.cpp's own tools draft up to 16
# tokens while their model gives each 0.75 or more.
LLAMA_WAYS: dict[str, dict] = {
    "llama.cpp plain": {},
    "llama.cpp prompt lookup 2": {"max_ngram_size": 2, "num_pred_tokens": 2},
    "llama.cpp prompt lookup 10": {"max_ngram_size": 2, "num_pred_tokens": 10},
    "llama.cpp draft model 3": {"most": 3, "least_chance": 0.0},
    "llama.cpp draft model 16": {"most": 16, "least_chance": 0.75},
}
# 5 tokens, n-grams of 3 and a threshold of 0.4 are what OpenVINO GenAI's own samples use or propose.
OPENVINO_WAYS: dict[str, dict] = {
    "OpenVINO plain": {},
    "OpenVINO prompt lookup 5": {"kind": "prompt_lookup", "num_assistant_tokens": 5, "max_ngram_size": 3},
    "OpenVINO prompt lookup 10": {"kind": "prompt_lookup", "num_assistant_tokens": 10, "max_ngram_size": 3},
    "OpenVINO draft model 3": {"kind": "draft_model", "num_assistant_tokens": 3},
    "OpenVINO draft model 5": {"kind": "draft_model", "num_assistant_tokens": 5},
    "OpenVINO draft model 0.4": {"kind": "draft_model", "assistant_confidence_threshold": 0.4},
}
# The contestants of each system, plain decoding first.
SYSTEMS: dict[str, dict[str, dict]] = {
    OURS: FOREDRAFT,
    "transformers": TRANSFORMERS,
    LLAMA: LLAMA_WAYS,
    OPENVINO: OPENVINO_WAYS,
}
WAYS = {name: its for ways in SYSTEMS.values() for name, its in ways.items()}


def find_peers(pythons: Mapping[str, Path | None]) -> tuple[dict[str, Entrant], dict[str, str]]:
    """How each peer is started whose Python is given, and why the others take no part.

    Raises `ConfigError` for a Python that lacks what its peer needs.
    """
    every = entrants(*(str(pythons[name]) for name in (LLAMA, OPENVINO)), "off")
    present = {name: started_by(every[name], python) for name, python in pythons.items() if python is not None}
    for name, entrant in present.items():
        reason = entrant.missing()
        require(reason is None, f"{name} cannot take part: {reason}")
    return present, {name: "its Python was not named" for name in pythons if name not in present}


def started_by(entrant: Entrant, python: Path) -> Entrant:
    return replace(entrant, command=[str(python), str(HERE / SCRIPTS[entrant.name])])


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What all peers do alike.

    Attributes:
        target, draft: Names of the models.
        folder: Where these are written as peers read them.
        threads: They compute on.
        length: Tokens of the longest text, its prompt included.
        new: Tokens they write after a prompt.
        ends: Tokens that end a text; none where it goes on to `new` tokens.
    """

    target: str
    draft: str
    folder: Path
    threads: int
    length: int
    new: int
    ends: list[int]


def load(worker: Worker, task: Task) -> dict:
    """Have a peer's models loaded; returns what it says of itself. Raises `ContestantFailure`."""
    places = {}
    for part, name in (("target", task.target), ("draft", task.draft)):
        files = model_files(name, task.folder)
        files.prepare_for(worker.entrant)
        places[part] = files.of(worker.entrant)
    ways = SYSTEMS[worker.entrant.name]
    return worker.ask("load", **places, threads=task.threads, length=task.length, contestants=ways)["about"]


def peer_contestants(workers: Mapping[str, Worker], task: Task) -> dict[str, Contestant]:
    return {name: peer_contestant(its, name, task) for peer, its in workers.items() for name in SYSTEMS[peer]}


def peer_contestant(worker: Worker, name: str, task: Task) -> Contestant:
    def write(prompt: list[int]) -> Sample:
        answer = worker.ask("write", contestant=name, tokens=prompt, new=task.new, ends=task.ends)
        sample = Sample(**answer)
        if len(sample.tokens) != task.new and sample.tokens[-1:] not in [[end] for end in task.ends]:
            raise ContestantFailure(f"{name} wrote {len(sample.tokens)} tokens instead of {task.new}")
        return sample

    return write


def clocks_of(workers: Mapping[str, Worker], own: Callable[[], float]) -> dict[str, Callable[[], float]]:
    """CPU seconds by process; ours, whose clock is `own`, runs transformers too."""
    return {OURS: own} | {name: worker.cpu_seconds for name, worker in workers.items()}


def process_of(contestant: str) -> str:
    return next((name for name in SCRIPTS if contestant in SYSTEMS[name]), OURS)
