"""The speculation a command line asks for: one JSON object, flags that override its keys, or both."""

from dataclasses import replace
from typing import Any

from foredraft.cli.flags import flags_of, given
from foredraft.core.speculation_config import SpeculationConfig

SpeculationFlags = flags_of(SpeculationConfig, names={"method": "--drafter", "model": "--draft-model"})


def speculation_from(text: str | None, flags: Any) -> SpeculationConfig:
    """What the JSON object `text` says, with the flags given beside it. Raises `ConfigError`."""
    return replace(SpeculationConfig.from_json(text if text is not None else "{}"), **given(flags))
