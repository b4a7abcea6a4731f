"""Who takes part in the benchmark of serving: the command of each server, and what its requests say."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
from plain_model import load_plain
from serve_processes import HOST, PORT, ServerCommand
from transformers import AutoTokenizer

from foredraft import ConfigError, SpeculationConfig
from foredraft.core.errors import require
from foredraft.model.loading import find_checkpoint

OFF, FIXED, AUTO = "off", "fixed", "auto"
PEER, PEER_ALONE = "transformers", "transformers one by one"
# Many prompts ask the same of other people, so nobody drafts from past outputs.
FORGETFUL = {"suffix_decoding_max_cached_requests": 0}
SETTINGS: dict[str, dict] = {
    OFF: {"method": "none"},
    FIXED: {"method": "suffix", "num_speculative_tokens": 12, "suffix_decoding_max_spec_factor": 2.0} | FORGETFUL,
    AUTO: {"method": "auto"} | FORGETFUL,
}
PEERS = {PEER: True, PEER_ALONE: False}  # whether it batches
USUAL = (OFF, FIXED, AUTO, PEER)
PAGE_TOKENS = 256  # of transformers' cache; its default
NEEDED = ("accelerate", "fastapi", "uvicorn", "openai")  # by `transformers serve`


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What every server is started with.

    Attributes:
        target: The model: a folder, a hub id or an embedded name.
        dtype: Of weights and cache, as torch names it.
        peer_dtype: Of the peers'; without bf16 arithmetic torch is faster in fp32.
        threads: CPU threads.
        cache_tokens: Tokens that the cache holds.
        most: Most requests at once.
        temperature: Of all requests; transformers fixes it once for its batches.
        ignore_eos: Whether texts go on past their end.
        peer_python: The Python that runs `transformers serve`.
        folder: For the weights as transformers reads them.
    """

    target: str
    dtype: str
    peer_dtype: str
    threads: int
    cache_tokens: int
    most: int
    temperature: float
    ignore_eos: bool
    peer_python: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """Everybody's threads, counted in the same way, and nobody looks for a network."""
        return {"OMP_NUM_THREADS": str(self.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def settings_of(names: Sequence[str], changes: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, object]]:
    """The speculative configs of everybody of ours who takes part, `off` first.

    Raises `ConfigError` for an unknown name, a wrong setting, and other settings of `off`, the reference.
    """
    require(OFF not in changes, f"--settings names {OFF!r}; it is the reference and stays as it is")
    known = {name: SETTINGS.get(name, {}) | dict(changes.get(name, {})) for name in {**SETTINGS, **changes}}
    unknown = [name for name in names if name not in (*known, *PEERS)]
    listed = ", ".join([*known, *PEERS])
    require(not unknown, f"contestant {', '.join(map(repr, unknown))} is not known; known: {listed}")
    require(not set(changes) & set(PEERS), f"--settings names {PEER!r}; it does not speculate")
    chosen = {name: known[name] for name in dict.fromkeys([OFF, *(names or known)]) if name in known}
    for name, setting in chosen.items():
        require(bool(setting.get("method")), f"contestant {name!r} has no method; give it one in --settings")
        try:
            SpeculationConfig.from_dict(dict(setting))
        except ConfigError as error:
            raise ConfigError(f"contestant {name!r}: {error}") from None
    return chosen


def peers_of(names: Sequence[str]) -> list[str]:
    """The peers that take part, where `names` were asked for."""
    return [name for name in names or USUAL if name in PEERS]


def our_command(name: str, setting: Mapping[str, object], place: Place) -> ServerCommand:
    arguments = [sys.executable, "-m", "foredraft", "serve", "--host", HOST, "--port", PORT, "--no-playground"]
    arguments += ["--model", place.target, "--served-model-name", place.target, "--device", "cpu"]
    arguments += ["--dtype", place.dtype, "--threads", str(place.threads), "--max-batch", str(place.most)]
    arguments += ["--cache-tokens", str(place.cache_tokens), "--speculative-config", json.dumps(dict(setting))]
    return ServerCommand(name=name, arguments=arguments, environment=place.environment)


def peer_command(name: str, place: Place) -> ServerCommand:
    """`transformers serve` over the same weights.

    Its cache is bounded as ours is: left to itself it takes most of the free memory and did not answer on a CPU.
    """
    arguments = [place.peer_python, "-m", "transformers.cli.transformers", "serve", str(place.folder)]
    arguments += ["--host", HOST, "--port", PORT, "--device", "cpu", "--dtype", place.peer_dtype]
    if PEERS[name]:
        arguments += ["--continuous-batching", "--cb-num-blocks", str(ceil(place.cache_tokens / PAGE_TOKENS))]
    return ServerCommand(name=name, arguments=arguments, environment=place.environment)


def peer_missing(python: str) -> str | None:
    """Why `python` cannot run `transformers serve`, in one line; none where it can."""
    code = f"import transformers, importlib; [importlib.import_module(name) for name in {NEEDED}]"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    except OSError as error:
        return f"{python}: {error.strerror}"
    if done.returncode == 0:
        return None
    reason = (done.stderr.strip().splitlines() or ["it failed"])[-1]
    return f"{python} cannot run `transformers serve`: {reason}; name one that can with --peer-python"


def write_peer_model(place: Place) -> None:
    """The target's weights in `place.folder` as `transformers serve` reads them.

    It has no field for what a request leaves out: the end of text and how to sample are in the folder's own config.
    """
    model = load_plain(place.target, getattr(torch, place.peer_dtype))
    generation = model.generation_config
    if place.temperature > 0:
        generation.do_sample, generation.top_k, generation.top_p = True, 0, 1.0
    if place.ignore_eos:
        generation.eos_token_id = model.config.eos_token_id = None
    model.save_pretrained(place.folder)
    AutoTokenizer.from_pretrained(find_checkpoint(place.target).path).save_pretrained(place.folder)
