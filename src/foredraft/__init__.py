"""Exact speculative decoding for any transformers causal language model.

Names load on first use: `foredraft --help` must not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foredraft.core.errors import (
        ConfigError,
        ForedraftError,
        ModelError,
        PromptError,
        SlotsError,
        UserError,
        VocabularyError,
    )
    from foredraft.core.sampling_params import SamplingParams
    from foredraft.core.speculation_config import SpeculationConfig
    from foredraft.engine.engine import Engine
    from foredraft.engine.output import RequestOutput, TokenEvent
    from foredraft.interop.transformers_generate import generate

__version__ = "0.1.0"

HOMES = {
    "ConfigError": "core.errors",
    "Engine": "engine.engine",
    "ForedraftError": "core.errors",
    "ModelError": "core.errors",
    "PromptError": "core.errors",
    "RequestOutput": "engine.output",
    "SamplingParams": "core.sampling_params",
    "SlotsError": "core.errors",
    "SpeculationConfig": "core.speculation_config",
    "TokenEvent": "engine.output",
    "UserError": "core.errors",
    "VocabularyError": "core.errors",
    "generate": "interop.transformers_generate",
}

__all__ = [
    "ConfigError",
    "Engine",
    "ForedraftError",
    "ModelError",
    "PromptError",
    "RequestOutput",
    "SamplingParams",
    "SlotsError",
    "SpeculationConfig",
    "TokenEvent",
    "UserError",
    "VocabularyError",
    "generate",
]


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"module 'foredraft' has no attribute {name!r}")
    return getattr(import_module(f"foredraft.{HOMES[name]}"), name)
