"""The target's answers on disk: appended as they come, found again after a kill, in order at the end."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from foredraft import __version__
from foredraft.core.errors import require
from foredraft.core.replaced_file import replace_text
from foredraft.engine.output import RequestOutput
from foredraft.training.samples import DataError, Sample

SYNC_ANSWERS = 16  # most answers a kill can lose
VERSIONS = ("torch", "transformers", "tokenizers")


@dataclass(kw_only=True)
class AnswerCache:
    """Answers to prompts, a JSON line each, and beside them a file that says how they were made.

    Attributes:
        path: Of the lines; the settings lie beside it under the same name and `.settings.json`.
        prompts: By key.
        settings: What the answers depend on; a cache made with others is refused.
        lines: The line of each answer by key, in the order of the file, then those not written yet.
        waiting: Answers that are not written yet.
    """

    path: Path
    prompts: dict[int, list[int]]
    settings: dict[str, Any]
    lines: dict[int, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises `DataError` where the cache was made otherwise, is damaged or cannot be made."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.settle()
            self.lines = dict(self.stored()) if self.path.exists() else {}
        except OSError as error:
            raise DataError(f"cannot use cache {str(self.path)!r}: {error.strerror}") from None

    def settle(self) -> None:
        """Refuse a cache of other settings; leave a note of these beside a new one."""
        beside = self.path.with_name(f"{self.path.name}.settings.json")
        if not beside.exists():
            told = (
                f"{str(self.path)!r} is there, but not {beside.name!r}, which says how it was made; give another path"
            )
            require(not self.path.exists(), told, DataError)
            versions = {"foredraft": __version__, **{name: version(name) for name in VERSIONS}}
            replace_text(beside, json.dumps({"settings": self.settings, "versions": versions}, indent=2) + "\n")
            return
        try:
            before = json.loads(beside.read_text(encoding="utf-8"))["settings"]
            differing = [key for key in self.settings if before.get(key) != self.settings[key]]
        except (ValueError, KeyError, TypeError, AttributeError):
            raise DataError(f"{str(beside)!r} is damaged; give another path, or delete it and its answers") from None
        for key in differing:
            made = f"{str(self.path)!r} was made with {key} {before.get(key)!r}, not {self.settings[key]!r}"
            raise DataError(f"{made}; give another path, or delete it and {beside.name!r}")

    def stored(self) -> Iterator[tuple[int, str]]:
        """Key and line of every answer in the file; a last line that was torn by a kill is cut off."""
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)
        for number, line in enumerate(data[:whole].splitlines(), start=1):
            try:
                values = json.loads(line)
                key = values["key"]
                fits = self.prompts[key] == values["prompt_tokens"] and bool(values["tokens"])
            except (ValueError, KeyError, TypeError):
                fits = False
            damaged = f"{self.path}:{number}: no answer to any prompt of this run; delete the line to have it made anew"
            require(fits, damaged, DataError)
            yield key, line.decode("utf-8")

    def missing(self) -> dict[int, list[int]]:
        """Prompts without an answer, by key."""
        return {key: prompt for key, prompt in self.prompts.items() if key not in self.lines}

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Whatever ends the block, the answers added in it are written."""
        try:
            yield
        finally:
            self.flush()

    def add(self, key: int, output: RequestOutput) -> None:
        """Take an answer. Raises `DataError` where the disk refuses."""
        line = json.dumps(
            {
                "prompt_tokens": output.prompt_token_ids,
                "tokens": output.token_ids,
                "finish_reason": output.finish_reason,
                "seed": output.seed,
                "key": key,
            }
        )
        self.lines[key] = line
        self.waiting.append(line)
        if len(self.waiting) >= SYNC_ANSWERS:
            self.flush()

    def flush(self) -> None:
        """Have the disk hold every answer taken so far."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        try:
            with self.path.open("ab") as file:
                file.write("".join(f"{line}\n" for line in waiting).encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            kept = f"{len(self.lines) - len(waiting)} answers are kept"
            raise DataError(f"cannot write to cache {str(self.path)!r}: {error.strerror}; {kept}") from None

    def put_in_order(self) -> None:
        """Have the lines stand in the order of their keys, whatever order they came in."""
        if list(self.lines) == sorted(self.lines):
            return
        self.lines = dict(sorted(self.lines.items()))
        try:
            replace_text(self.path, "".join(f"{line}\n" for line in self.lines.values()))
        except OSError as error:
            raise DataError(f"cannot put cache {str(self.path)!r} in order: {error.strerror}") from None

    def samples(self) -> list[Sample]:
        """Prompts with their answers, only these written, in the order of the file."""
        found = []
        for number, line in enumerate(self.lines.values(), start=1):
            values = json.loads(line)
            prompt, answer = values["prompt_tokens"], values["tokens"]
            written = (False,) * len(prompt) + (True,) * len(answer)
            found.append(Sample((*prompt, *answer), written, f"{self.path}:{number}"))
        return found
