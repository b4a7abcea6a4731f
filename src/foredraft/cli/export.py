"""`foredraft export`: a drafter's head in the format another engine loads."""

import json
from pathlib import Path
from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from foredraft.checkpoints.head import HeadCheckpoint, HeadReading
from foredraft.checkpoints.head_checkpoint import find_head
from foredraft.checkpoints.head_writer import WRITERS, WrittenHead, write_head
from foredraft.cli.flags import flags_of, given
from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.core.speculation_config import one_of
from foredraft.model.loading import EMBEDDED, Checkpoint, find_checkpoint

ReadingFlags = flags_of(HeadReading)
VLLM, SGLANG = "vLLM", "SGLang"
# Engines that load each format, and how vLLM and SGLang call the methods.
LOADED_BY = {
    "speculators": (VLLM,),
    "eagle": (SGLANG,),
    "medusa": (),
    "medusa-vllm": (VLLM,),
    "dflash": (VLLM, SGLANG),
}
ALGORITHMS = {"eagle": "EAGLE", "eagle3": "EAGLE3", "dflash": "DFLASH"}


def export(
    head: str,
    /,
    *,
    target: str,
    format: str,
    output: Path,
    speculative_tokens: int = 3,
    reading: Annotated[ReadingFlags, Parameter(name="*", group="Reading")] = ReadingFlags(),  # noqa: B008
) -> None:
    """Write a drafter's head in a published format and say how to serve it.

    Args:
        head: A folder, a hub id or an embedded name.
        target: The model it drafts for: a folder, a hub id or an embedded name.
        format: speculators (vLLM), eagle (SGLang), dflash (both), medusa-vllm, or medusa as its authors store it.
        output: A new or empty folder.
        speculative_tokens: Drafts a step, for the format's config and the commands.
    """
    whole("speculative_tokens", speculative_tokens, 1, 64)
    one_of("format", format, tuple(WRITERS))
    require(not output.exists() or is_empty(output), f"output {str(output)!r} is not an empty folder")
    made_for = find_checkpoint(target)
    options = HeadReading(**given(reading))
    found = find_head(head, method=None, target=made_for.capability, target_path=made_for.path, reading=options)
    written = write_head(
        found,
        output,
        format=format,
        target_name=engine_name(made_for),
        target_architectures=[made_for.capability.architecture],
        target_layers=made_for.capability.layers,
        speculative_tokens=speculative_tokens,
    )
    for line in told(found, written, format, engine_name(made_for), speculative_tokens):
        print(line)


def is_empty(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def engine_name(checkpoint: Checkpoint) -> str:
    """The target as other engines find it: its folder, or its hub id."""
    local = checkpoint.name in EMBEDDED or Path(checkpoint.name).is_dir()
    return str(Path(checkpoint.path).resolve()) if local else checkpoint.name


def told(head: HeadCheckpoint, written: WrittenHead, format: str, target: str, tokens: int) -> list[str]:
    """What was read, what was written, and a command for each engine that loads it."""
    loads = [
        f"serve with {engine}: {SERVE[engine](head.method, written.folder, target, tokens)}"
        for engine in LOADED_BY[format]
    ]
    nobody = f"neither {VLLM} nor {SGLANG} loads the {format} format; medusa-vllm is for {VLLM}"
    return [
        f"read {head.name}: {head.method}, {head.format}",
        *(f"  {note}" for note in head.notes),
        f"wrote {written.folder}: {', '.join(written.files)}",
        *(f"  {note}" for note in written.notes),
        *(loads or [nobody]),
    ]


def vllm_command(method: str, folder: Path, target: str, tokens: int) -> str:
    config = json.dumps({"method": method, "model": str(folder.resolve()), "num_speculative_tokens": tokens})
    return f"vllm serve {quote(target)} --speculative-config {quote(config)}"


def sglang_command(method: str, folder: Path, target: str, tokens: int) -> str:
    """A chain of drafts; its token count includes the root."""
    command = (
        f"python -m sglang.launch_server --model-path {quote(target)} --speculative-algorithm {ALGORITHMS[method]}"
    )
    command += f" --speculative-draft-model-path {quote(str(folder.resolve()))}"
    chain = f" --speculative-num-steps {tokens} --speculative-eagle-topk 1 --speculative-num-draft-tokens {tokens + 1}"
    return command if method == "dflash" else command + chain


SERVE = {VLLM: vllm_command, SGLANG: sglang_command}
