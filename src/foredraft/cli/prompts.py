"""Where prompts come from: the command line, standard input, or a file of them."""

import json
import sys
from pathlib import Path

from foredraft.core.errors import PromptError, require


def read_prompts(prompt: str | None, *, from_stdin: bool, file: Path | None) -> list[str]:
    """The prompts of the one source that is given. Raises `PromptError` for none, several, or an unreadable one."""
    sources = (prompt is not None) + from_stdin + (file is not None)
    require(sources > 0, "no prompt: give one, - to read it from standard input, or --prompts FILE", PromptError)
    require(sources == 1, "several prompts: give either a PROMPT, or -, or --prompts FILE", PromptError)
    if file is not None:
        return file_prompts(file)
    return [sys.stdin.read().removesuffix("\n") if from_stdin else prompt]


def file_prompts(file: Path) -> list[str]:
    """The prompts of a file, one a line; blank lines are passed over.

    A file whose first line begins with a brace holds JSON objects: `{"prompt": ...}`, or Spec-Bench questions, whose
    first turn is the prompt. Any other holds plain text. Raises `PromptError` with the line's number and what is wrong.
    """
    lines = [(number, line) for number, line in enumerate(read_lines(file), start=1) if line.strip()]
    require(bool(lines), f"{file} holds no prompts", PromptError)
    if not lines[0][1].lstrip().startswith("{"):
        return [line for _, line in lines]
    return [json_prompt(line, f"{file} line {number}") for number, line in lines]


def read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise PromptError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise PromptError(f"{str(file)!r} is not UTF-8 text: bad byte at {error.start}") from None


def json_prompt(line: str, where: str) -> str:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{where} is not JSON: {error.msg} at character {error.pos}") from None
    require(isinstance(record, dict), f"{where} is not a JSON object", PromptError)
    if "prompt" in record:
        require(isinstance(record["prompt"], str), f"{where}: prompt must be a string", PromptError)
        return record["prompt"]
    turns = record.get("turns")
    strings = isinstance(turns, list) and bool(turns) and all(isinstance(turn, str) for turn in turns)
    require(strings, f"{where} needs a string prompt, or turns, a list of strings", PromptError)
    return turns[0]
