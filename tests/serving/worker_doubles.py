"""Engines over a scripted target that can be held at a step or made to fail."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from threading import Event, Semaphore

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.serving.generation import Generation, Order
from foredraft.serving.worker import EngineWorker

VOCABULARY = 7
LONG = 500  # tokens of a request that does not end by itself while a test looks at it
PATIENCE = 10.0  # seconds after which a test that waits for something gives up


def law(history: tuple[int, ...]) -> list[float]:
    """Logits that depend on the last three tokens, without ties."""
    rng = random.Random(hash(history[-3:]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


def options(**given) -> dict:
    return {"speculation": OFF, "max_batch": 4} | given


def target(slots: int = 4096) -> ScriptedTarget:
    return ScriptedTarget(law, vocabulary=VOCABULARY, slots=slots)


class HeldEngine(Engine):
    """Makes a step only when one is allowed, and fails where it is told to.

    Attributes:
        allowed: A permit for each step that may be made.
        done: Steps that were begun.
        submits: Orders that were taken, by the count of steps before.
        step_errors: What the next steps raise; none for a good one.
        submit_error, end_error: What every such call raises.
    """

    def __init__(self, over: ScriptedTarget | None = None, **given):
        super().__init__(over or target(), **options(**given))
        self.allowed = Semaphore(0)
        self.done = 0
        self.submits: list[int] = []
        self.step_errors: list[BaseException | None] = []
        self.submit_error: BaseException | None = None
        self.end_error: BaseException | None = None

    def allow(self, steps: int = 10_000) -> None:
        self.allowed.release(steps)

    def step(self):
        assert self.allowed.acquire(timeout=PATIENCE)
        self.done += 1
        error = self.step_errors.pop(0) if self.step_errors else None
        if error is not None:
            self.scheduler.admit()
            raise error
        return super().step()

    def submit(self, *order, **settings):
        if self.submit_error is not None:
            raise self.submit_error
        self.submits.append(self.done)
        return super().submit(*order, **settings)

    def end(self, running, reason):
        if self.end_error is not None:
            raise self.end_error
        return super().end(running, reason)


def plain() -> Engine:
    return Engine(target(), **options())


@asynccontextmanager
async def serving(engine: Engine, **settings) -> AsyncIterator[EngineWorker]:
    """A worker over `engine`; afterwards it must have ended with every slot free."""
    worker = EngineWorker(engine, **settings)
    worker.start()
    try:
        yield worker
    finally:
        if isinstance(engine, HeldEngine):
            engine.allow()
        await worker.stop(PATIENCE)
    assert not worker.snapshot().alive
    assert engine.scheduler.idle and not worker.serving.seats
    engine.target.pool.check_integrity([])
    engine.prefix_cache.check_integrity()


def order(*prompts: list[int], tokens: int = LONG, speculation: SpeculationConfig | None = None, **given) -> Order:
    """An order of `prompts`, one of which is made up where none is given; sampling keys are told from an order's."""
    own = {key: given.pop(key) for key in ("priority", "timeout") if key in given}
    sampling = SamplingParams(max_new_tokens=tokens, **given)
    return Order(prompts=list(prompts) or [[1, 2, 3]], sampling=sampling, speculation=speculation, **own)


async def placed(worker: EngineWorker, *orders: Order) -> list[Generation]:
    """Submit `orders` in such a way that the engine takes all of them before its next step."""
    pause = Event()
    worker.serving.calls.put(partial(pause.wait, PATIENCE))
    calls = [asyncio.create_task(worker.submit(asked)) for asked in orders]
    await asyncio.sleep(0)
    pause.set()
    return await asyncio.gather(*calls)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.001)


async def answered(worker: EngineWorker, asked):
    return await (await worker.submit(asked)).outputs()


def sums(updates, sample: int = 0):
    """Tokens, sources, text and log-probabilities of one continuation's updates, joined."""
    events = [update.event for update in updates if update.event.sample == sample]
    return (
        [token for event in events for token in event.tokens],
        [source for event in events for source in event.sources],
        "".join(event.text for event in events),
        [entry for event in events for entry in event.logprobs or []],
    )


def whole(output):
    return output.token_ids, output.sources, output.text, output.logprobs or []


async def collected(generation: Generation) -> list:
    return [update async for update in generation]


async def held(worker: EngineWorker, steps: int) -> None:
    """Wait until the engine has made `steps` steps and is held at the next."""
    await until(lambda: worker.snapshot().steps == steps and worker.snapshot().busy_since is not None)
