"""The target's states of samples: computed when they are asked for, or once and kept on disk."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foredraft.core.replaced_file import replace_text
from foredraft.core.sampling_params import whole
from foredraft.model.loading import first_line
from foredraft.training.batches import States, within_tokens
from foredraft.training.samples import DataError, Sample, token_hash
from foredraft.training.target_network import TargetNetwork

FORWARD_TOKENS = 8192  # of one forward, padding included
SHARD_TOKENS = 65536
INDEX = "index.jsonl"
SETTINGS = "settings.json"
FILE_ERRORS = (OSError, SafetensorError)

Progress = Callable[[int, int, int], None]  # samples done, samples in all, tokens done


@dataclass(frozen=True, slots=True)
class OnTheFly:
    """States computed anew whenever they are asked for.

    Attributes:
        target: Who computes them.
        boundaries: Whose features, side by side.
    """

    target: TargetNetwork
    boundaries: tuple[int, ...]

    def states(self, samples: Sequence[Sample]) -> list[States]:
        """Features [T, n H] and final states [T, H] of each sample, on the target's device and in its dtype."""
        order = sorted(range(len(samples)), key=lambda place: len(samples[place]))
        found: dict[int, States] = {}
        for places in within_tokens(order, lambda place: len(samples[place]), FORWARD_TOKENS):
            found |= zip(places, self.together([samples[place] for place in places]), strict=True)
        return [found[place] for place in range(len(samples))]

    def together(self, samples: Sequence[Sample]) -> Iterator[States]:
        """States of samples that share one forward."""
        tokens = pad_sequence([torch.tensor(sample.tokens) for sample in samples], batch_first=True)
        states = self.target.features(tokens, self.boundaries)
        for text, sample in enumerate(samples):
            yield states.features[text, : len(sample)], states.final[text, : len(sample)]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sample's states lie: rows `start` to `end` of a shard."""

    shard: str
    start: int
    end: int


class FeatureCache:
    """States kept on disk in shards, found again by what the sample holds.

    A folder keeps states of one target, one set of boundaries and one dtype apart from those of others. A shard is
    written under a temporary name and renamed, then listed in the index: whatever ends the run, only the shard under
    way is lost. Several processes may fill one folder.

    Attributes:
        folder: Of these states.
        places: Where the states of each sample lie, by the hash of its tokens.
    """

    def __init__(
        self,
        folder: Path | str,
        source: OnTheFly,
        *,
        dtype: torch.dtype = torch.bfloat16,
        shard_tokens: int = SHARD_TOKENS,
    ):
        """States of `source`, kept in `dtype`. Raises `DataError` where the folder cannot be made or read."""
        whole("shard_tokens", shard_tokens, 1)
        self.source, self.dtype, self.shard_tokens = source, dtype, shard_tokens
        settings = {
            "target": source.target.fingerprint,
            "computed_in": str(source.target.dtype),
            "boundaries": list(source.boundaries),
            "kept_in": str(dtype),
        }
        self.folder = Path(folder) / hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_text(self.folder / SETTINGS, json.dumps({"name": source.target.name, **settings}, indent=2) + "\n")
        except OSError as error:
            raise DataError(f"cannot write to feature cache {str(self.folder)!r}: {error.strerror}") from None
        self.places = self.listed()

    def listed(self) -> dict[str, Place]:
        """What the index lists and the folder holds; a line the disk tore is as if it had never been."""
        index, places = self.folder / INDEX, {}
        lines = index.read_text(encoding="utf-8").splitlines() if index.exists() else []
        for line in lines:
            try:
                shard = json.loads(line)
                if (self.folder / shard["shard"]).exists():
                    places |= {key: Place(shard["shard"], *rows) for key, rows in shard["samples"].items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
        return places

    def missing(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those of `samples` whose states are not kept yet, each text once, the shortest first."""
        wanted = {token_hash(sample.tokens): sample for sample in samples}
        return sorted((sample for key, sample in wanted.items() if key not in self.places), key=len)

    def fill(self, samples: Sequence[Sample], progress: Progress | None = None) -> None:
        """Compute and keep what is missing of `samples`.

        Raises `DataError` where the disk refuses; the shards written before it stay.
        """
        missing, done, tokens = self.missing(samples), 0, 0
        for part in in_shards(missing, self.shard_tokens):
            self.keep(part)
            done, tokens = done + len(part), tokens + sum(map(len, part))
            if progress:
                progress(done, len(missing), tokens)

    def keep(self, samples: list[Sample]) -> None:
        """Write one shard and list it."""
        states = self.source.states(samples)
        features, final = (torch.cat([each[part] for each in states]).to("cpu", self.dtype) for part in (0, 1))
        rows, start = {}, 0
        for sample in samples:
            rows[token_hash(sample.tokens)] = [start, start + len(sample)]
            start += len(sample)
        name = hashlib.sha256("".join(rows).encode()).hexdigest()[:16] + ".safetensors"
        try:
            write_shard(self.folder / name, {"features": features.contiguous(), "final": final.contiguous()})
            append_line(self.folder / INDEX, json.dumps({"shard": name, "samples": rows}))
        except FILE_ERRORS as error:
            kept = f"the states of {len(self.places)} samples are kept"
            raise DataError(
                f"cannot write to feature cache {str(self.folder)!r}: {first_line(error)}; {kept}"
            ) from None
        self.places |= {key: Place(name, *place) for key, place in rows.items()}

    def states(self, samples: Sequence[Sample]) -> list[States]:
        """Features [T, n H] and final states [T, H] of each sample, on the CPU in the dtype they are kept in.

        What is not kept yet is computed and kept. Raises `DataError` where a shard cannot be read.
        """
        self.fill(samples)
        return [self.read(self.places[token_hash(sample.tokens)]) for sample in samples]

    def read(self, place: Place) -> States:
        path = self.folder / place.shard
        try:
            with safe_open(path, framework="pt") as file:
                features, final = file.get_slice("features"), file.get_slice("final")
                return features[place.start : place.end], final[place.start : place.end]
        except FILE_ERRORS as error:
            raise DataError(f"cannot read {str(path)!r}: {first_line(error)}; delete it to have it made anew") from None


def in_shards(samples: list[Sample], tokens: int) -> Iterator[list[Sample]]:
    """Neighbours of at most so many tokens together."""
    shard: list[Sample] = []
    for sample in samples:
        if shard and sum(map(len, shard)) + len(sample) > tokens:
            yield shard
            shard = []
        shard.append(sample)
    if shard:
        yield shard


def write_shard(path: Path, tensors: dict[str, Tensor]) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary)
        sync(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def append_line(path: Path, line: str) -> None:
    """Add a line in one write, so that lines of several processes do not mix; it starts anew after a torn one."""
    data = f"\n{line}\n".encode()
    with path.open("ab", buffering=0) as file:
        if file.write(data) < len(data):
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
