"""The engine's thread: nobody's request is lost, slots come back, and text is the engine's own."""

import asyncio
import gc
import threading
from collections import Counter
from dataclasses import replace

import pytest
import torch
from spelling_target import SpellingTarget
from worker_doubles import (
    HeldEngine,
    answered,
    collected,
    held,
    options,
    order,
    placed,
    plain,
    serving,
    sums,
    target,
    until,
    whole,
)

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError, PromptError, SlotsError
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.engine import scheduler
from foredraft.engine.engine import Engine
from foredraft.engine.output import TokenEvent
from foredraft.serving.errors import BusyError, StoppingError
from foredraft.serving.mailbox import Mailbox, Update
from foredraft.serving.ticket import without_laws
from foredraft.serving.worker import EngineWorker

pytestmark = pytest.mark.anyio
METHODS = [None, OFF, SpeculationConfig(method="ngram"), SpeculationConfig(method="suffix")]


def mixed(place: int):
    """The order of one of many callers: no two are alike."""
    prompts = [[place % 7, part, 1, 2] * (1 + place % 5) for part in range(1 + place % 2)]
    return order(
        *prompts,
        tokens=5 + place % 23,
        temperature=(place % 3) / 2,
        seed=place,
        n=1 + place % 3,
        logprobs=place % 2 or None,
        presence_penalty=(place % 4) / 4,
        priority=place % 3,
        speculation=METHODS[place % 4],
    )


@pytest.mark.parametrize("slots", [4096, 80])
async def test_fifty_callers_at_once_get_what_each_gets_alone(slots, monkeypatch):
    monkeypatch.setattr(scheduler, "GROWTH_TOKENS", 2)  # so that few slots mean preemption
    orders = [mixed(place) for place in range(50)]
    engine = Engine(target(slots), **options())
    async with serving(engine) as worker:
        answers = await asyncio.gather(*(answered(worker, asked) for asked in orders))
        assert worker.snapshot().faults == 0
    assert bool(engine.scheduler.preemptions) == (slots < 4096)
    for asked, outputs in zip(orders, answers, strict=True):
        alone = plain().generate(asked.prompts, asked.sampling, asked.speculation or OFF)
        assert [(o.index, o.sample) for o in outputs] == [(o.index, o.sample) for o in alone]
        assert [o.token_ids for o in outputs] == [o.token_ids for o in alone]
        assert [o.finish_reason for o in outputs] == [o.finish_reason for o in alone]


async def test_updates_join_to_the_output():
    async with serving(plain()) as worker:
        updates = await collected(await worker.submit(order(tokens=40, n=2, temperature=1.0, logprobs=1, seed=4)))
    ends = [update for update in updates if update.output is not None]
    assert sorted(end.output.sample for end in ends) == [0, 1]
    for end in ends:
        assert end.event.finish_reason == end.output.finish_reason == "length"
        assert sums(updates, end.output.sample) == whole(end.output)


async def test_outputs_are_all_there_after_a_part_was_read():
    async with serving(plain()) as worker:
        generation = await worker.submit(order(tokens=9, n=3, temperature=1.0, seed=1))
        async for update in generation:
            if update.output is not None:
                break
        assert [output.sample for output in await generation.outputs()] == [0, 1, 2]
        assert [update async for update in generation] == []


async def test_a_users_mistake_is_raised_to_the_caller_alone():
    async with serving(Engine(target(slots=64), **options())) as worker:
        other = await worker.submit(order(tokens=30))
        with pytest.raises(PromptError, match="token"):
            await worker.submit(order([99]))
        with pytest.raises(SlotsError, match="cache slots"):
            await worker.submit(order([1, 2], tokens=90))
        with pytest.raises(PromptError, match="no prompts"):
            replace(order(), prompts=[])
        with pytest.raises(ConfigError, match="timeout is 0"):
            order(timeout=0)
        assert (await other.outputs())[0].finish_reason == "length"


@pytest.mark.parametrize("waits", [False, True])
async def test_cancelling_frees_slots_before_the_next_step(waits):
    engine = HeldEngine(max_batch=1)
    async with serving(engine) as worker:
        first, last = await placed(worker, order(n=2), order())
        engine.allow(3)
        await held(worker, 3)
        (last if waits else first).cancel()
        (last if waits else first).cancel()
        engine.allow(2)  # one has begun
        outputs = await (last if waits else first).outputs()
        assert [output.finish_reason for output in outputs] == ["cancelled"] * (1 if waits else 2)
        assert outputs[-1].token_ids == []
        assert outputs[0].token_ids == plain().generate([1, 2, 3]).pop().token_ids[: len(outputs[0].token_ids)]
        await held(worker, 5)
        assert worker.snapshot().waiting == (1 if waits else 0) and worker.snapshot().running == 1
        assert engine.target.pool.size - engine.target.pool.free < 12  # slots of one request
        (first if waits else last).cancel()


async def one_left(worker: EngineWorker, engine: HeldEngine) -> None:
    """Wait until the engine, which is held at a step, has let go of all but one request."""
    steps = worker.snapshot().steps
    engine.allow(2)
    await held(worker, steps + 2)
    assert len(worker.serving.seats) == worker.snapshot().running == 1


async def test_a_reader_whose_task_is_cancelled_gives_its_slots_back():
    engine = HeldEngine()
    async with serving(engine) as worker:
        stays, leaves = await placed(worker, order(), order(n=2))
        task = asyncio.create_task(leaves.outputs())
        engine.allow(2)
        await held(worker, 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one_left(worker, engine)
        stays.cancel()


async def test_a_reader_that_forgets_its_generation_gives_its_slots_back():
    engine = HeldEngine()
    async with serving(engine) as worker:
        stays, forgotten = await placed(worker, order(), order(n=2))
        engine.allow(2)
        await held(worker, 2)
        del forgotten
        gc.collect()
        await one_left(worker, engine)
        stays.cancel()


async def test_a_caller_that_leaves_before_its_answer_leaves_nothing_behind():
    engine = HeldEngine()
    async with serving(engine) as worker:
        stays = await worker.submit(order())
        await held(worker, 0)  # held in a step: the next order must wait
        task = asyncio.create_task(worker.submit(order()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one_left(worker, engine)
        assert len(engine.submits) == 1
        stays.cancel()


async def test_waiting_with_a_limit_keeps_the_order():
    engine = HeldEngine()
    async with serving(engine) as worker:
        generation = await worker.submit(order(tokens=6))
        assert not await generation.ready(0.01)
        engine.allow()
        assert (await generation.outputs())[0].finish_reason == "length"
        assert await generation.ready(0.01)


async def test_a_generation_has_one_reader():
    engine = HeldEngine()
    async with serving(engine) as worker:
        generation = await worker.submit(order())
        reader = asyncio.create_task(generation.outputs())
        await asyncio.sleep(0)
        with pytest.raises(AssertionError, match="one reader"):
            await anext(generation)
        reader.cancel()


async def test_a_slow_reader_gets_everything_in_few_updates():
    asked = order(tokens=200, n=2, temperature=1.0, seed=7, logprobs=1, speculation=SpeculationConfig(method="ngram"))
    async with serving(plain(), max_pending_events=4) as worker:
        slow = await worker.submit(asked)
        await until(lambda: worker.snapshot().steps > 20 and not worker.serving.seats)
        assert len(slow.mailbox.pending) <= 4 + 2
        updates = await collected(slow)
    assert len(updates) <= 4 + 2
    outputs = {update.output.sample: update.output for update in updates if update.output}
    alone = plain().generate(asked.prompts, asked.sampling, asked.speculation)
    for sample in range(2):
        assert sums(updates, sample) == whole(outputs[sample]) == whole(alone[sample])
        assert [update.output is not None for update in updates if update.event.sample == sample][-1]


async def test_what_is_unfinished_at_its_timeout_ends_with_the_text_so_far():
    engine = HeldEngine(max_batch=1)
    async with serving(engine) as worker:
        generation = await worker.submit(order(n=2, timeout=1000.0, temperature=1.0, seed=5, logprobs=1))
        engine.allow(9)
        await held(worker, 9)
        worker.serving.deadline = 0.0  # the hour has come
        for seat in worker.serving.seats.values():
            seat.ticket.deadline = 0.0
        engine.allow(1)
        updates = await collected(generation)
    outputs = [update.output for update in updates if update.output]
    assert [output.finish_reason for output in outputs] == ["timeout", "timeout"]
    assert len(outputs[0].token_ids) == 10 and outputs[1].token_ids == []
    for output in outputs:
        assert sums(updates, output.sample) == whole(output)


async def test_an_order_without_timeout_outlives_another():
    engine = HeldEngine()
    async with serving(engine) as worker:
        orders = order(tokens=8), order(timeout=0.02), order(tokens=8, timeout=1000.0)
        long, short, later = await placed(worker, *orders)
        await asyncio.sleep(0.03)
        engine.allow()
        assert (await short.outputs())[0].finish_reason == "timeout"
        assert (await long.outputs())[0].finish_reason == (await later.outputs())[0].finish_reason == "length"


async def test_every_timeout_is_kept():
    engine = HeldEngine()
    async with serving(engine) as worker:
        first, second = await placed(worker, order(timeout=0.02), order(timeout=0.04))
        await asyncio.sleep(0.03)
        engine.allow(1)
        assert (await first.outputs())[0].finish_reason == "timeout"
        await asyncio.sleep(0.02)
        engine.allow(2)
        assert (await second.outputs())[0].finish_reason == "timeout"


async def test_a_full_queue_refuses_and_says_when_to_come_back():
    engine = HeldEngine(max_batch=2)
    async with serving(engine, max_waiting=3) as worker:
        with pytest.raises(ConfigError, match="6 continuations; this server takes at most 5"):
            await worker.submit(order(n=6))
        first, second = await placed(worker, order(tokens=4, n=3), order(tokens=4, n=2))
        early = asyncio.create_task(worker.submit(order()))
        await asyncio.sleep(0)  # the order is placed before the step that answers it
        engine.allow(1)
        with pytest.raises(BusyError) as refusal:
            await early
        assert refusal.value.retry_after == 1
        worker.serving.recent.extend([3.0, 5.0])
        third = asyncio.create_task(worker.submit(order()))
        await asyncio.sleep(0)  # the order is placed before the step that answers it
        engine.allow(1)
        with pytest.raises(BusyError, match="3 requests are waiting") as refusal:
            await third
        assert refusal.value.retry_after == 6  # three wait for two places of four seconds each
        engine.allow()
        await asyncio.gather(first.outputs(), second.outputs())
        assert (await answered(worker, order(tokens=3)))[0].finish_reason == "length"


async def test_a_higher_priority_goes_first():
    engine = HeldEngine(max_batch=1)
    async with serving(engine) as worker:
        usual, urgent = await placed(worker, order(tokens=5), order(tokens=5, priority=1))
        engine.allow(5)
        assert (await urgent.outputs())[0].finish_reason == "length"
        assert not usual.mailbox.pending
        engine.allow()
        assert (await usual.outputs())[0].finish_reason == "length"


async def test_a_flood_of_orders_does_not_stop_what_runs():
    engine = HeldEngine(max_batch=4)
    async with serving(engine, max_waiting=40) as worker:
        runs = await worker.submit(order(tokens=6))
        await held(worker, 0)
        calls = [asyncio.create_task(answered(worker, order(tokens=2))) for _ in range(60)]
        await asyncio.sleep(0)
        engine.allow()
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert (await runs.outputs())[0].finish_reason == "length"
    refused = [result for result in results if isinstance(result, BusyError)]
    assert len(refused) == 60 - 43  # three more places beside the one that runs, and the queue
    assert max(Counter(engine.submits).values()) == 16


async def test_stopping_lets_what_is_there_finish():
    engine = HeldEngine(max_batch=1)
    async with serving(engine) as worker:
        generation = await worker.submit(order(tokens=7, n=2))
        stop = asyncio.create_task(worker.stop(20))
        await asyncio.sleep(0)
        with pytest.raises(StoppingError):
            await worker.submit(order())
        assert worker.snapshot().stopping and worker.snapshot().alive
        engine.allow()
        await stop
        await worker.stop(20)
        assert [output.finish_reason for output in await generation.outputs()] == ["length"] * 2
        with pytest.raises(StoppingError):
            await worker.submit(order())


async def test_stopping_ends_what_does_not_finish_in_time():
    engine = HeldEngine(max_batch=1)
    async with serving(engine) as worker:
        generation = await worker.submit(order(n=2))
        await held(worker, 0)
        late = asyncio.create_task(worker.submit(order()))
        await asyncio.sleep(0)
        stops = [asyncio.create_task(worker.stop(grace)) for grace in (20, 0)]
        await asyncio.sleep(0.01)
        engine.allow(2)
        await asyncio.gather(*stops)
        outputs = await generation.outputs()
        assert [output.finish_reason for output in outputs] == ["shutdown"] * 2
        assert len(outputs[0].token_ids) == 1
        with pytest.raises(StoppingError):
            await late


async def test_a_worker_that_never_started_stops():
    worker = EngineWorker(plain())
    assert not worker.snapshot().alive
    await worker.stop(0)


async def test_an_idle_worker_sleeps(monkeypatch):
    async with serving(plain()) as worker:
        await answered(worker, order(tokens=3))
        await until(lambda: not worker.serving.unchecked)  # once, in the first quiet moment
        turns = []
        monkeypatch.setattr(worker.serving, "end_overdue", lambda: turns.append(1))
        await asyncio.sleep(0.05)
        assert turns == []


async def test_an_event_loop_that_closes_gives_its_slots_back():
    engine = HeldEngine()
    async with serving(engine) as worker:
        stays = await worker.submit(order())
        kept = []

        async def leave():
            kept.append(await worker.submit(order(n=2)))

        thread = threading.Thread(target=lambda: asyncio.run(leave()))
        thread.start()
        await until(lambda: kept or engine.allow(1))
        await asyncio.to_thread(thread.join)
        await until(lambda: len(worker.serving.seats) == 1 or engine.allow(1))
        stays.cancel()


async def test_a_snapshot_tells_how_serving_stands():
    engine = HeldEngine(max_batch=2)
    async with serving(engine) as worker:
        generation = await worker.submit(order(n=3))
        engine.allow(1)
        await held(worker, 1)
        shot = worker.snapshot()
        assert (shot.alive, shot.stopping, shot.waiting, shot.running, shot.faults) == (True, False, 1, 2, 0)
        assert shot.slots_total == 4096 and shot.slots_used >= 6
        generation.cancel()


async def test_text_that_was_held_back_comes_with_the_end():
    """A stop string may still become whole when the reader leaves: what was kept for it belongs to the output."""
    engine = HeldEngine(SpellingTarget())
    async with serving(engine) as worker:
        prompt = engine.encode("<|user|>say abcdefghi<|end|><|assistant|>")
        generation = await worker.submit(order(prompt, stop=("defX",)))
        engine.allow(5)
        await held(worker, 5)
        assert "".join(pending.last.event.text for pending in generation.mailbox.pending) == "abc"
        generation.cancel()
        engine.allow(1)
        updates = await collected(generation)
    assert sums(updates)[2] == updates[-1].output.text == "abcdef"


def event(text: str, **fields) -> TokenEvent:
    return TokenEvent(
        **({"index": 0, "sample": 0, "tokens": [1], "sources": ["x"], "finish_reason": None} | fields), text=text
    )


def test_what_waits_is_joined_for_each_continuation():
    mailbox = Mailbox(continuations=2, limit=2)
    for text in ("a", "b", "c", "d"):
        mailbox.put(Update(event(text), None))
    mailbox.put(Update(event("x", sample=1), None))
    mailbox.put(Update(event("y", sample=1, tokens=[2, 3], sources=[None, "z"], path=[0]), None))
    first, second, third = (mailbox.take().event for _ in range(3))
    assert (first.text, second.text, second.tokens) == ("a", "bcd", [1, 1, 1])
    assert (third.text, third.tokens, third.sources, third.path) == ("xy", [1, 2, 3], ["x", None, "z"], [0])
    mailbox.put(Update(event("e"), None))
    assert mailbox.take().event.text == "e"


def test_readers_get_no_laws():
    tree = DraftTree(tokens=[1], parents=[-1], drafters=["x"], laws=[torch.ones(7), None])
    with_laws = event("a", tree=tree, path=[0])
    assert without_laws(with_laws).tree == DraftTree(tokens=[1], parents=[-1], drafters=["x"])
    assert without_laws(event("a")).tree == DraftTree()
