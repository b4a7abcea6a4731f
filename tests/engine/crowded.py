"""Engines whose cache is too small for all they are asked, and how they are run."""

import random

from foredraft import Engine
from foredraft.core.speculation_config import OFF
from foredraft.engine.running import Running
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 7
STEP_LIMIT = 20_000  # far more than any test takes: an engine that goes on for ever fails


def law(history):
    """Logits that depend on the last three tokens, without ties."""
    rng = random.Random(hash(history[-3:]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


def scripted(slots: int = 4096, **options) -> Engine:
    """An engine that drafts nothing and keeps nothing unless asked, over a target without a network."""
    target = ScriptedTarget(law, vocabulary=VOCABULARY, slots=slots)
    return Engine(target, **({"speculation": OFF, "prefix_cache": False} | options))


def finish(engine: Engine) -> list[list]:
    """Step until nothing is left; the requests that wrote, by step."""
    steps = []
    while not engine.scheduler.idle:
        steps.append([running for running, _, _ in engine.step()])
        check_pool(engine)
        assert len(steps) < STEP_LIMIT, "the engine goes round in circles"
    return steps


def check_pool(engine: Engine) -> None:
    scheduler = engine.scheduler
    engine.target.pool.check_integrity([running.table for running in scheduler.running])
    if engine.prefix_cache is not None:
        engine.prefix_cache.check_integrity()
    assert all(running.table is None for running in scheduler.waiting)
    for requests in (scheduler.running, scheduler.waiting):
        assert [running.rank for running in requests] == sorted(running.rank for running in requests)


def outputs(requests: list[Running]) -> list[list[int]]:
    return [running.request.output for running in requests]
