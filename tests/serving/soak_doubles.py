"""The soak of `benchmarks/soak.py` against a server of this process, and raw clients for other tests."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep

import httpx
from live_server import Live

BENCHMARKS = str(Path(__file__).resolve().parents[2] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)

from soak_calls import CHAT, COMPLETIONS, Call, Clients, World, dumped  # noqa: E402  (found by the line above)
from soak_checks import Ledger, Told  # noqa: E402
from soak_client import Answer, answer_to  # noqa: E402

__all__ = ["CHAT", "COMPLETIONS", "Answer", "Call", "World", "answer_to", "dumped"]  # for the tests

PATIENCE = 60.0  # seconds after which a test that waits for something gives up


def place_of(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def told_by(live: Live) -> Told:
    return Told.from_text(httpx.get(f"{live.url}/metrics").text)


def soaked(live: Live, world: World, *, calls: int, clients: int, seed: int) -> Ledger:
    """Make so many calls, so many at a time."""
    drawn, ledger = Clients(world, seed).calls(calls), Ledger()

    async def client() -> None:
        for call in drawn:
            ledger.add(call, await answer_to(call, *place_of(live.url), patience=PATIENCE))

    async def all_clients() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    asyncio.run(all_clients())
    return ledger


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE * 100)):
        if holds():
            return
        sleep(0.01)
    raise AssertionError("it did not come to be")


def require_rest(live: Live) -> None:
    """Assert that nothing is left of any request, once the engine has nothing to do."""
    engine, serving = live.service.engine, live.service.worker.serving
    wait_until(lambda: engine.scheduler.idle and not serving.seats and serving.calls.empty())
    engine.target.pool.check_integrity([])
    engine.prefix_cache.check_integrity()
    assert not engine.policy.requests and not engine.quarantine.suspects and not serving.arrivals
    assert live.service.worker.snapshot().faults == 0
