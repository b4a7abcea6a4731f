"""What becomes of requests when the engine fails, and of serving when those who watch it do."""

import asyncio

import pytest
from worker_doubles import HeldEngine, answered, collected, held, order, placed, plain, serving, sums, until, whole

from foredraft.core.errors import ForedraftError
from foredraft.serving.errors import EngineFailure

pytestmark = pytest.mark.anyio
SECRET = "what a user wrote"


class Panic(BaseException):
    """As Rust code throws: no `Exception`."""


def dying() -> HeldEngine:
    """An engine of one seat that fails at every step."""
    engine = HeldEngine(max_batch=1)
    engine.step_errors = [RuntimeError()] * 9
    return engine


@pytest.mark.parametrize("error", [RuntimeError(SECRET), Panic(SECRET)])
async def test_a_fault_ends_what_runs_and_the_rest_goes_on(error, caplog):
    engine = HeldEngine(max_batch=2)
    engine.step_errors = [None, None, error]
    async with serving(engine) as worker:
        hit, waits = await placed(worker, order(n=2, temperature=1.0, seed=1), order(tokens=9))
        engine.allow()
        updates = await collected(hit)
        outputs = [update.output for update in updates if update.output]
        assert [output.finish_reason for output in outputs] == ["error"] * 2
        assert {output.error for output in outputs} == {f"the engine failed with {type(error).__name__}"}
        assert all(sums(updates, o.sample) == whole(o) and len(o.token_ids) == 2 for o in outputs)
        finished = (await waits.outputs())[0]
        assert finished.finish_reason == "length" and finished.error is None
        assert finished.token_ids == plain().generate([1, 2, 3], order(tokens=9).sampling)[0].token_ids
        assert worker.snapshot().faults == 1
    assert type(error).__name__ in caplog.text and SECRET not in caplog.text


async def test_faults_with_steps_between_do_not_add_up():
    engine = HeldEngine()
    engine.step_errors = [RuntimeError(), RuntimeError(), None] * 3
    engine.allow()
    async with serving(engine) as worker:
        outputs = [(await answered(worker, order(tokens=2)))[0] for _ in range(9)]
        assert [o.finish_reason for o in outputs].count("error") >= 5
        assert (await answered(worker, order(tokens=2)))[0].finish_reason == "length"
        assert worker.snapshot().alive


async def test_an_engine_that_fails_and_fails_is_given_up(caplog):
    engine = dying()
    async with serving(engine) as worker:
        generation, other = await placed(worker, order(n=5), order())
        engine.allow()
        reasons = []
        with pytest.raises(EngineFailure):
            async for update in generation:
                reasons.append(update.output.finish_reason)
        assert reasons == ["error"] * 3
        with pytest.raises(EngineFailure):
            await other.outputs()
        assert not worker.snapshot().alive
        with pytest.raises(EngineFailure):
            await worker.submit(order())
        assert engine.done == 3


async def test_whoever_asks_while_the_engine_dies_is_told():
    engine = dying()
    async with serving(engine) as worker:
        kept = await worker.submit(order(n=3))
        await held(worker, 0)
        calls = [asyncio.create_task(answered(worker, order())) for _ in range(60)]  # more than are taken till then
        await asyncio.sleep(0)
        engine.allow()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, EngineFailure) for result in results)
        assert [output.finish_reason for output in await kept.outputs()] == ["error"] * 3


async def test_nobody_is_forgotten_where_a_caller_leaves_while_the_engine_dies():
    engine = dying()
    async with serving(engine) as worker:
        leaving = await worker.submit(order(n=5))
        await held(worker, 0)
        loop, die = worker.serving, worker.serving.die

        def die_as_he_leaves():
            loop.calls.put(leaving.cancel)
            die()

        loop.die = die_as_he_leaves
        engine.allow(2)
        await until(lambda: loop.row == 2 and loop.began is not None)
        late = asyncio.create_task(worker.submit(order()))
        await asyncio.sleep(0)
        engine.allow()
        with pytest.raises(EngineFailure):
            await asyncio.wait_for(late, 10)


async def test_an_end_that_fails_still_frees_slots_and_gives_an_output(caplog):
    engine = HeldEngine()
    async with serving(engine) as worker:
        generation = await worker.submit(order())
        engine.allow(2)
        await generation.ready()
        engine.end_error = RuntimeError(SECRET)
        generation.cancel()
        engine.allow(2)
        assert (await generation.outputs())[0].finish_reason == "cancelled"
        engine.target.pool.check_integrity([])
    assert "ending a request failed with RuntimeError" in caplog.text and SECRET not in caplog.text


async def test_an_end_that_the_whole_engine_refuses_is_left_to_the_scheduler(monkeypatch):
    engine = HeldEngine()
    async with serving(engine) as worker:
        generation = await worker.submit(order())
        engine.end_error = RuntimeError()
        monkeypatch.setattr(engine, "cancel", lambda requests: [][1])
        engine.step_errors = [RuntimeError()]
        engine.allow()
        assert (await generation.outputs())[0].finish_reason == "error"
        assert (await answered(worker, order(tokens=3)))[0].finish_reason == "length"


async def test_an_end_that_fails_half_way_leaves_no_slots(monkeypatch):
    engine = HeldEngine()
    async with serving(engine) as worker:
        generation = await worker.submit(order())
        engine.allow(2)
        await held(worker, 2)
        monkeypatch.setattr(engine.prefix_cache, "keep", lambda running: [][1])
        generation.cancel()
        engine.allow(1)
        assert (await generation.outputs())[0].finish_reason == "cancelled"
        engine.target.pool.check_integrity([])
        monkeypatch.undo()
        engine.allow()
        assert (await answered(worker, order(tokens=3)))[0].finish_reason == "length"


@pytest.mark.parametrize("error", [RuntimeError(SECRET), Panic(SECRET)])
async def test_an_order_that_cannot_be_prepared_fails_alone(error, caplog):
    engine = HeldEngine()
    engine.allow()
    async with serving(engine) as worker:
        engine.submit_error = error
        with pytest.raises(ForedraftError, match=f"failed with {type(error).__name__}") as refusal:
            await worker.submit(order())
        assert SECRET not in str(refusal.value) + caplog.text
        engine.submit_error = None
        assert (await answered(worker, order(tokens=3)))[0].finish_reason == "length"
        assert worker.snapshot().faults == 0


async def test_what_a_failed_preparation_has_queued_is_dropped(monkeypatch):
    engine = HeldEngine()
    engine.allow()
    async with serving(engine) as worker:
        monkeypatch.setattr(engine.policy, "open", lambda running, requests: [][1])
        with pytest.raises(ForedraftError, match="failed with IndexError"):
            await worker.submit(order(n=3))
        monkeypatch.undo()
        assert worker.snapshot().waiting == 0
        assert (await answered(worker, order(tokens=3)))[0].finish_reason == "length"


class Watcher:
    """Keeps every event of every step, then fails."""

    def __init__(self):
        self.events = []

    def step(self, engine, events):
        self.events += events
        raise RuntimeError(SECRET)


async def test_observers_are_told_everything_once_and_cannot_do_harm(caplog):
    engine, watchers = HeldEngine(), [Watcher(), Watcher()]
    async with serving(engine, observers=watchers) as worker:
        generation, dropped = await placed(worker, order(tokens=6, n=2, temperature=1.0, seed=2), order())
        engine.allow(3)
        await held(worker, 3)
        dropped.cancel()
        engine.allow()
        outputs = await generation.outputs() + await dropped.outputs()
        await until(lambda: not worker.serving.early)
    for watcher in watchers:
        ends = [output for _, _, output in watcher.events if output is not None]
        assert sorted(map(id, ends)) == sorted(map(id, outputs))
        told = sum(len(event.tokens) for _, event, _ in watcher.events)
        assert told == sum(len(output.token_ids) for output in outputs)
    faults = [record for record in caplog.records if "observes steps" in record.message]
    assert len(faults) == len(watchers) and SECRET not in caplog.text


async def test_leaked_slots_are_noticed_when_nothing_is_open(caplog):
    engine = HeldEngine()
    engine.allow()
    async with serving(engine) as worker:
        await answered(worker, order(tokens=3))
        leak = engine.target.pool.open(4)
        engine.target.pool.take(leak, 4)
        await answered(worker, order(tokens=3))
        await until(lambda: worker.snapshot().faults == 1)
        engine.target.pool.close(leak)
        await answered(worker, order(tokens=3))
    assert worker.snapshot().faults == 1
    assert "check of cache slots failed" in caplog.text
