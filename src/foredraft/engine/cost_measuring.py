"""Measures what steps cost: forwards of the target by their size, calls of drafters in real generations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter, DraftTask
from foredraft.engine.found_costs import Found, calm, fill_in, in_turn
from foredraft.engine.running import Option, Running
from foredraft.engine.step_costs import PLAIN, DraftCost, ForwardCost, StepCosts, option_label
from foredraft.model.slot_pool import SlotTable
from foredraft.model.target import ModelTarget, Target

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

ROWS = (1, 2, 4, 8, 12, 16, 20, 24, 32, 64, 128, 192)
CALL_SHARES = {1: 0.5, 4: 0.8, 16: 1.0}  # requests of a call, in this order, and the share of the time spent by then
REQUESTS = tuple(CALL_SHARES)
SHORT, LONG = 64, 512  # contexts
ALWAYS = (1, 8)  # rows of one request that are measured whatever the budget
REPEATS = 7
SETTLING, SETTLING_SHARE = 3, 0.1  # forwards before each round, and of its time: after long ones short ones are slow
FORWARD_SHARE = 0.4  # of the budget, for forwards
FIRST_ROUND = 0.5  # of their time, for trying each size once

PROMPT = 48  # tokens
PERIOD = 12  # of the prompt, so that lookups find something
WARM_UP = 2  # calls that are not counted: a drafter first runs through the prompt
CALLS = 10  # calls that are counted, at most
MOST_WRITTEN = 15  # drafters that search or learn on what a request writes are given too little to begin


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardSize:
    """Packed rows, requests that share them evenly, committed positions of each."""

    rows: int
    requests: int
    context: int

    @property
    def longest(self) -> int:
        """Positions of the request with the most rows."""
        return self.context + -(-self.rows // self.requests)

    @property
    def guess(self) -> float:
        """What it may cost, in rows, to measure cheap sizes first."""
        return self.rows + self.requests * self.context / 256


class Stopwatch:
    """Times work on `device` within a budget that begins now."""

    def __init__(self, device: torch.device, clock: Callable[[], float], seconds: float):
        self.device, self.clock = device, clock
        self.end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds of the budget that are left, negative once it is overrun."""
        return self.end - self.clock()

    def timed(self, work: Callable[[], object]) -> tuple[object, float]:
        """What `work` returns, and the seconds until the device had done it."""
        self.finish()
        start = self.clock()
        result = work()
        self.finish()
        return result, self.clock() - start

    def finish(self) -> None:
        """Wait until the device has done what was asked of it."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)


def undisturbed(times: Sequence[float]) -> float:
    """The lower quartile: whatever else the machine does only adds time."""
    return sorted(times)[len(times) // 4]


def measured_costs(
    engine: "Engine",
    options: Sequence[SpeculationConfig],
    *,
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> StepCosts:
    """Measure the target and the drafter of each of `options` on the idle `engine`, in about `seconds` altogether.

    Loading drafters that the engine has not yet used comes on top. Raises `UserError` kinds where one cannot be made.
    """
    prepare_drafters(engine, options)
    share = FORWARD_SHARE if options else 1.0
    whole = Stopwatch(engine.target.pool.device, clock, seconds)
    forwards = measured_forwards(engine, seconds=seconds * share, clock=clock)
    return StepCosts(forwards=forwards, drafts=measured_drafts(engine, options, seconds=whole.left, clock=clock))


def prepare_drafters(engine: "Engine", options: Sequence[SpeculationConfig]) -> None:
    """Load every drafter before a clock runs."""
    for config in options:
        engine.drafter_for(config)


def measured_forwards(
    engine: "Engine", *, seconds: float, clock: Callable[[], float] = perf_counter
) -> tuple[ForwardCost, ...]:
    """Seconds of forwards, cheap sizes first, as many sizes as half of `seconds` allows to try once.

    The rest repeats them in rounds (`turns_of`).
    """
    assert engine.scheduler.idle
    watch = Stopwatch(engine.target.pool.device, clock, seconds)
    timer = ForwardTimer(engine.target, watch)
    first: dict[ForwardSize, float] = {}
    for size in planned_sizes(engine.target):
        if watch.left < seconds * (1 - FIRST_ROUND) and not always(size, engine.target):
            break
        first[size] = timer.seconds(size)
    repeats: dict[ForwardSize, list[float]] = {size: [] for size in first}
    for size, counts in turns_of(first):
        if watch.left <= 0:
            break
        seconds = timer.seconds(size)
        if counts:
            repeats[size].append(seconds)
    # The first time counts only where there is no other: kernels of a new size may be made in it.
    costs = {size: undisturbed(times or [first[size]]) for size, times in repeats.items()}
    return tuple(
        ForwardCost(rows=size.rows, requests=size.requests, context=size.context, seconds=cost)
        for size, cost in costs.items()
    )


def turns_of(first: Mapping[ForwardSize, float]) -> Iterator[tuple[ForwardSize, bool]]:
    """Sizes in the order to repeat them, `REPEATS` times each, and whether the time counts; `first` are their seconds.

    In rounds, from cheap to expensive: a disturbance then falls on one repeat of several sizes, not on all of one, and
    each follows others like it, as in a generation. The cheaper half takes part in every round, the others as soon as
    that has had as much time: most decisions are about few rows, which were measured once or twice when all took turns.
    """
    in_order = sorted(first, key=lambda size: size.guess)
    cheapest, middle = in_order[0], sorted(first.values())[len(first) // 2] or max(first.values())
    settling = min(SETTLING, int(SETTLING_SHARE * sum(first.values()) / first[cheapest]))
    done = dict.fromkeys(in_order, 0)
    for number in count(1):
        waiting = [size for size in in_order if done[size] < REPEATS]
        if not waiting:
            return
        due = [size for size in waiting if (done[size] + 1) * first[size] <= number * middle]
        yield from [(cheapest, False)] * (settling if due else 0)
        for size in due:
            yield size, True
            done[size] += 1


def planned_sizes(target: Target) -> list[ForwardSize]:
    """Sizes the target has room for, in the order to try them: every number of rows at a short context comes first."""
    sizes = [
        ForwardSize(rows=rows, requests=requests, context=context)
        for requests in REQUESTS
        for context in contexts(target, requests)
        for rows in ROWS
        if rows >= requests
    ]
    fitting = [size for size in sizes if size.longest <= room(target, size.requests)]
    short = {requests: contexts(target, requests)[0] for requests in REQUESTS}
    return sorted(
        fitting, key=lambda size: (not always(size, target), size.context != short[size.requests], size.guess)
    )


def always(size: ForwardSize, target: Target) -> bool:
    return size.requests == 1 and size.rows in ALWAYS and size.context == contexts(target, 1)[0]


def contexts(target: Target, requests: int) -> tuple[int, ...]:
    """Contexts to measure `requests` requests at.

    The long one lets its slots hold whatever they hold; a target that is no model may read them, so it gets none.
    """
    if not isinstance(target, ModelTarget):
        return (0,)
    space = room(target, requests)
    short, long = min(SHORT, space // 2), min(LONG, space * 3 // 4)
    return (short, long) if long >= 4 * short else (short,)


def room(target: Target, requests: int) -> int:
    """Positions each of `requests` requests may have."""
    return min(target.context_length, target.pool.size // requests)


class ForwardTimer:
    """Times forwards of the target on slots it borrows from the pool and returns."""

    def __init__(self, target: Target, watch: Stopwatch):
        self.target, self.watch = target, watch
        self.random = Random(0)
        self.touched = 0

    def seconds(self, size: ForwardSize) -> float:
        """Seconds of one forward of `size`, a chain of rows for each request, logits of all rows wanted."""
        pool = self.target.pool
        tables = [pool.open(size.longest) for _ in range(size.requests)]
        try:
            plan = build_plan([self.rows(table, i, size) for i, table in enumerate(tables)], pool.device)
            self.touch(max(table.tail[-1] for table in tables) + 1)
            return self.watch.timed(lambda: self.target.forward(plan))[1]
        finally:
            for table in tables:
                pool.close(table)

    def rows(self, table: SlotTable, index: int, size: ForwardSize) -> Rows:
        pool, share = self.target.pool, (size.rows + index) // size.requests
        pool.keep(table, pool.take(table, size.context))
        return Rows(
            tokens=[self.random.randrange(self.target.vocabulary.size) for _ in range(share)],
            pending=1,
            parents=list(range(-1, share - 2)),
            slots=pool.take(table, share),
            context=size.context,
            context_slots=table.committed(pool.device),
            logits=share,
        )

    def touch(self, stop: int) -> None:
        """Write what the slots before `stop` hold: memory never written is read faster than a filled cache."""
        if isinstance(self.target, ModelTarget) and stop > self.touched:
            fresh = list(range(self.touched, stop))
            self.target.model.layers.move(fresh, fresh)
            self.touched = stop


def measured_drafts(
    engine: "Engine",
    options: Sequence[SpeculationConfig],
    *,
    seconds: float,
    clock: Callable[[], float] = perf_counter,
) -> dict[str, tuple[DraftCost, ...]]:
    """Seconds of a drafter's call for each of `options`, by label, in about `seconds`.

    Every option is measured for one request; for more as far as time and slots allow, those that cost least for a token
    first, one of each drafter before others: what calls of one length or shape take more for more requests, those of
    others do. One the cache has no room for, and the one that drafts nothing, is left out.
    """
    assert engine.scheduler.idle
    prepare_drafters(engine, options)
    by_label = {option_label(config): config for config in options}
    by_label.pop(PLAIN, None)
    watch = Stopwatch(engine.target.pool.device, clock, seconds)
    instant = {label: engine.drafter_for(config).needs.instant for label, config in by_label.items()}
    found: Found = {label: {} for label in by_label}
    with set_aside(engine):
        for requests, share in CALL_SHARES.items():
            rest = seconds * (1.0 - share)
            for place, label in enumerate(in_turn(by_label, found, instant)):
                if requests > 1 and watch.left <= rest:
                    break
                run = DraftRun(engine, by_label[label], requests, watch)
                cost = run.seconds((watch.left - rest) / (len(by_label) - place))
                if cost is not None:
                    found[label][requests] = cost
            fill_in(found, by_label, requests)
            calm(found, by_label, requests)
    return {
        label: tuple(DraftCost(requests=requests, seconds=cost) for requests, cost in costs.items())
        for label, costs in found.items()
        if costs
    }


@contextmanager
def set_aside(engine: "Engine") -> Iterator[None]:
    """Lets the engine run more requests than it takes; it forgets what it counts and computes meanwhile."""
    ended, max_batch = engine.ended, engine.scheduler.max_batch
    engine.scheduler.max_batch = max(REQUESTS)
    try:
        with engine.cold():
            yield
    finally:
        engine.ended, engine.scheduler.max_batch = ended, max_batch


class TimedDrafter:
    """A drafter whose calls are timed. It is the drafter itself in everything else."""

    def __init__(self, drafter: Drafter, watch: Stopwatch):
        self.drafter, self.watch = drafter, watch
        self.calls: list[tuple[int, float]] = []  # requests, seconds

    def __getattr__(self, name: str) -> object:
        return getattr(self.drafter, name)

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        trees, seconds = self.watch.timed(lambda: self.drafter.propose(tasks))
        self.calls.append((len(tasks), seconds))
        return trees


class DraftRun:
    """A short generation of `requests` requests that draft by `config`.

    The requests are cancelled, never finished: a drafter that keeps finished texts keeps none of these.
    """

    def __init__(self, engine: "Engine", config: SpeculationConfig, requests: int, watch: Stopwatch):
        self.engine, self.config, self.requests, self.watch = engine, config, requests, watch
        self.drafter = TimedDrafter(engine.drafter_for(config), watch)
        self.deepest = config.depth

    def seconds(self, budget: float) -> float | None:
        """Seconds of a call for all requests at once; none where too few calls fit into slots or time."""
        prompt, new = self.lengths()
        if new <= self.deepest:
            return None
        until = self.watch.left - budget
        running = self.submitted(prompt, new)
        try:
            while self.goes_on(running, until):
                self.engine.step()
        finally:
            self.engine.cancel(running)
        counted = self.full_calls()[WARM_UP:]
        return undisturbed(counted) if counted else None

    def lengths(self) -> tuple[int, int]:
        """Tokens of each prompt, and tokens each request may write."""
        draft = self.config.scratch_nodes + self.drafter.needs.scratch
        pool, context = self.engine.target.pool, self.engine.target.context_length
        space = min(context, pool.size // self.requests - draft)
        prompt = max(1, min(PROMPT if self.requests == 1 else 2 * PERIOD, space // 2))
        return prompt, min(space - prompt, (WARM_UP + CALLS + 1) * (self.deepest + 1))

    def submitted(self, length: int, new: int) -> list[Running]:
        params = SamplingParams(max_new_tokens=new, ignore_eos=True, seed=0)
        running = self.engine.submit([self.prompt(i, length) for i in range(self.requests)], params, self.config)
        for one in running:
            one.options = tuple(Option(self.drafter, option.speculation) for option in one.options)
        return running

    def prompt(self, index: int, length: int) -> list[int]:
        """Tokens without sense that repeat."""
        random, size = Random(index), self.engine.target.vocabulary.size
        period = [random.randrange(size) for _ in range(PERIOD)]
        return [period[i % PERIOD] for i in range(length)]

    def goes_on(self, running: list[Running], until: float) -> bool:
        """Whether another step is worth it: a first call to count always is for one request, without end for none."""
        if any(one.request.remaining <= self.deepest + 1 for one in running):
            return False  # the next step might finish it, or ask for less than a whole draft
        calls = len(self.full_calls()) - WARM_UP
        if calls < 1:
            return self.requests == 1 or self.watch.left > 0
        written = max(one.request.written for one in running)
        return calls < CALLS and written <= MOST_WRITTEN and self.watch.left > until

    def full_calls(self) -> list[float]:
        return [seconds for tasks, seconds in self.drafter.calls if tasks == self.requests]
