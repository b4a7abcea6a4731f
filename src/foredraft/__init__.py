"""Exact speculative decoding for any transformers causal language model."""

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

__version__ = "0.1.0"

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
]
