"""Two hundred requests of every kind at once: each gets what an engine alone writes for it, token for token."""

import asyncio
from collections.abc import Iterator
from time import monotonic, sleep

import pytest
import torch
from live_server import Live, served
from load_mix import SPECULATIONS, Ask, RamblingTarget, Written, all_at_once, alone, mixed

from foredraft import Engine, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.engine import scheduler

COUNT = 200
MODEL_FREE = {"grammar", "lookahead", "ngram", "prediction", "recycling", "suffix"}
TRAINED = {"dflash", "draft_model", "eagle3", "medusa", "mtp"}
OWN = SpeculationConfig(  # what a request may not name, it gets by asking for nothing
    method="merged",
    drafters="eagle3, mtp, dflash, medusa, draft_model:tiny-draft",
    num_speculative_tokens=4,
    tree_size=16,
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Clients, server and engine share the machine as it is."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def little_room_to_grow(monkeypatch):
    """Many preemptions in short texts."""
    monkeypatch.setattr(scheduler, "GROWTH_TOKENS", 1)


def test_over_a_model_without_a_network():
    asks = mixed(COUNT, tokens=64, seed=1, speculations=SPECULATIONS)
    engine = Engine(RamblingTarget(slots=320), speculation=SpeculationConfig(method="suffix"), max_batch=8)
    answers = answered(engine, asks)
    plain = Engine(RamblingTarget(slots=4096), speculation=OFF, prefix_cache=False)
    check_all(asks, answers, [alone(plain, ask) for ask in asks])
    assert engine.statistics.accepted_by.keys() >= MODEL_FREE


def test_over_the_embedded_model():
    asks = mixed(COUNT, tokens=12, seed=2, speculations=[*SPECULATIONS, {"method": "self_speculation"}, None, None])
    engine = Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=180, max_batch=8, speculation=OWN)
    answers = answered(engine, asks)
    plain = Engine.from_pretrained("tiny", dtype="fp32", threads=1, speculation=OFF, prefix_cache=False)
    check_all(asks, answers, [alone(plain, ask) for ask in asks])
    assert engine.statistics.drafted_by.keys() >= MODEL_FREE | TRAINED | {"self_speculation"}
    assert engine.statistics.accepted_by.keys() >= {"draft_model", "eagle3", "mtp", "self_speculation"}


def answered(engine: Engine, asks: list[Ask]) -> list[list[Written] | None]:
    """What a server over `engine` answers when all is asked at once. Nothing is left open, and no slot is lost."""
    with served(engine) as live:
        answers = asyncio.run(all_at_once(live.url, asks))
        wait_until_idle(live)
        assert live.service.worker.snapshot().faults == 0
    engine.target.pool.check_integrity([])
    engine.prefix_cache.check_integrity()
    assert engine.scheduler.preemptions > 0 and engine.prefix_cache.hits > 0
    return answers


def wait_until_idle(live: Live, seconds: float = 30.0) -> None:
    """Clients that left are noticed a moment later."""
    until = monotonic() + seconds
    while live.service.worker.snapshot().running or live.service.worker.snapshot().waiting:
        assert monotonic() < until, "what clients have left is not given up"
        sleep(0.01)


def check_all(asks: list[Ask], answers: list[list[Written] | None], expected: list[list[Written]]) -> None:
    for ask, answer, whole in zip(asks, answers, expected, strict=True):
        check(ask, answer, whole)
    left = [ask for ask in asks if ask.leave is not None or ask.patience is not None]
    assert COUNT // 10 < len(left) < COUNT // 2
    assert {each.reason for whole in expected for each in whole} == {"stop", "length"}


def check(ask: Ask, answer: list[Written] | None, expected: list[Written]) -> None:
    """An answer is what was expected; of one whose client left, what had come by then."""
    if answer is None:
        assert ask.patience is not None, ask
        return
    for got, whole in zip(answer, expected, strict=True):
        if ask.leave is not None:
            assert got.begins(whole), (ask, got, whole)
        else:
            assert (got.text, got.reason) == (whole.text, whole.reason), (ask, got, whole)
            assert got.tokens in (None, whole.tokens), (ask, got, whole)
