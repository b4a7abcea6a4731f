"""A target that counts upwards, at any temperature, and drafts that are right or wrong on purpose."""

import pytest

from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.drafters.drafter import registry
from foredraft.drafters.scripted import Script, ScriptedDrafter
from foredraft.engine.engine import Engine
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 64
CERTAIN = 1000.0  # far above any noise


def counting_engine(step: int = 1) -> Engine:
    def law(history: tuple[int, ...]) -> list[float]:
        logits = [0.0] * VOCABULARY
        logits[(history[-1] + step) % VOCABULARY] = CERTAIN
        return logits

    return Engine(ScriptedTarget(law, vocabulary=VOCABULARY), speculation=OFF)


def scripted(monkeypatch: pytest.MonkeyPatch, name: str, script: Script, **config) -> SpeculationConfig:
    """The config of a drafter that follows `script`."""
    monkeypatch.setitem(registry, name, lambda config, target: ScriptedDrafter(script, name=name))
    return SpeculationConfig(method=name, **config)
