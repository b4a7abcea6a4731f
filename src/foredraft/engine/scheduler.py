"""Who runs in the next step: by priority, first come first served among equals, as far as slots and rows allow.

A request is let in once its text and some growth fit, though it may come to need more. Where slots then run short, the
request that came last gives its own back and waits at the front; what it has written is computed again later.
"""

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import attrgetter
from time import perf_counter

from foredraft.core.errors import SlotsError
from foredraft.engine.prefix_cache import PrefixCache
from foredraft.engine.running import Running, Work
from foredraft.model.slot_pool import SlotPool

MAX_STEP_ROWS = 512
PREFILL_ROWS = 256  # in a step in which others write: it bounds how long they wait for their next token
GROWTH_TOKENS = 64  # room a request is let in with, so that much is written between one preemption and the next

by_rank = attrgetter("rank")


def slots_needed(running: Running) -> int:
    """Most slots the request can ever hold at once: its longest text and one draft."""
    request = running.request
    return len(request.prompt) + request.params.max_new_tokens + running.draft_slots


def slots_ahead(running: Running) -> int:
    """Slots the request will soon take beside those it holds: what is pending, a draft, and some growth."""
    request = running.request
    return request.pending + running.draft_slots + min(request.remaining, GROWTH_TOKENS)


def step_slots(work: Work) -> int:
    """Most slots the work takes in its step."""
    return work.chunk + (work.running.draft_slots if work.decides else 0)


class Scheduler:
    """Waiting and running requests of one engine.

    Both lists are in the order of `Running.rank`, so the last request that runs is the one to preempt.

    Attributes:
        pool: The cache slots.
        max_batch: Most requests that run at once.
        step_rows: Most pending tokens computed in a step.
        prefill_rows: Most of them that are of prompts, in a step in which some request writes.
        on_loss: Told of each request that has lost its slots before its end.
        prefix_cache: What is kept of earlier texts; none where that is switched off.
        waiting, running: Requests, the next or earliest one first.
        arrivals, preemptions: How many there have been.
        blocked: Whether the first one that waits lacks slots, and cannot have them before some request leaves.
    """

    def __init__(
        self,
        pool: SlotPool,
        max_batch: int,
        *,
        step_rows: int,
        prefill_rows: int,
        on_loss: Callable[[Running], None],
        prefix_cache: PrefixCache | None = None,
    ):
        self.pool, self.max_batch = pool, max_batch
        self.step_rows, self.prefill_rows = step_rows, prefill_rows
        self.on_loss, self.prefix_cache = on_loss, prefix_cache
        self.waiting: list[Running] = []
        self.running: list[Running] = []
        self.arrivals = self.preemptions = 0
        self.blocked = False

    def submit(self, requests: list[Running]) -> None:
        """Queue requests. Raises `SlotsError`, queueing none, when the pool could not hold one even alone."""
        for running in requests:
            needed = slots_needed(running)
            if needed > self.pool.size:
                raise SlotsError(
                    f"the request needs {needed} cache slots (prompt, max_new_tokens and draft) and the cache has "
                    f"{self.pool.size}; shorten it or raise cache_tokens"
                )
        now = perf_counter()
        for running in requests:
            running.submitted = now
            running.rank = (-running.priority, self.arrivals)
            self.arrivals += 1
            self.queue(running)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def queue(self, running: Running) -> None:
        """Let a request wait at its place. One that comes first may need less than the one that was first."""
        insort(self.waiting, running, key=by_rank)
        self.blocked = self.blocked and self.waiting[0] is not running

    def admit(self) -> None:
        """Let waiting requests in, in order, while the batch and the pool have room.

        One that does not fit holds up those behind it: a long one would otherwise wait for ever.
        """
        if self.blocked or not self.waiting or len(self.running) >= self.max_batch:
            return
        promised = sum(map(slots_ahead, self.running))
        while self.waiting and len(self.running) < self.max_batch:
            running = self.waiting[0]
            promised += slots_ahead(running)
            if self.running and promised > self.room:
                self.blocked = True
                return
            del self.waiting[0]
            running.table = self.pool.open(len(running.request.prompt) + running.request.params.max_new_tokens)
            running.started = running.started or perf_counter()
            insort(self.running, running, key=by_rank)

    @property
    def room(self) -> int:
        """Slots that are free, or that the pool frees when they are needed: nobody reads what they hold."""
        return self.pool.free + sum(lender.evictable for lender in self.pool.lenders)

    def shut(self, running: Running) -> None:
        """Free a request's slots; none of its text is computed any more."""
        self.pool.close(running.table)
        running.table, running.request.computed = None, 0

    def next_batch(self) -> list[Work]:
        """Work for one step: every decoding request, then prompt chunks while rows are left.

        The pool has room for all of it, drafts included: where it had not, requests were preempted. One alone has room
        for its worst case, so it always goes on.
        """
        batch = self.planned()
        needed = sum(map(step_slots, batch))
        while needed > self.room and len(self.running) > 1:
            victim = self.running[-1]
            batch = [work for work in batch if work.running is not victim]
            needed = sum(map(step_slots, batch))
            self.preempt(victim)
        return batch

    def planned(self) -> list[Work]:
        """Work for one step as rows allow."""
        batch, reading, rows = [], [], self.step_rows
        for running in self.running:
            if running.request.pending > 1:
                reading.append(running)
            elif rows:
                batch.append(Work(running=running, chunk=1))
                rows -= 1
        rows = min(rows, self.prefill_rows) if batch else rows
        for running in reading:
            if not rows:
                break
            self.begin(running)
            chunk = min(running.request.pending, rows)
            batch.append(Work(running=running, chunk=chunk))
            rows -= chunk
        return batch

    def begin(self, running: Running) -> None:
        """Take what the prefix cache has of a text of which nothing is computed yet: just before it is needed, since
        others may compute it meanwhile."""
        if self.prefix_cache is not None and not running.request.computed:
            cached = self.prefix_cache.reuse(running)
            running.cached = cached if running.first_token is None else running.cached

    def preempt(self, running: Running) -> None:
        """Take a running request's slots back and let it wait at its place, before all that came later."""
        self.leave(running)
        self.on_loss(running)
        self.preemptions += 1
        insort(self.waiting, running, key=by_rank)
        # Its slots are for those that run: it is let in again when one of them leaves.
        self.blocked = self.blocked or self.waiting[0] is running

    def finish(self, running: Running) -> None:
        """Forget a request that has ended or was cancelled, waiting or running, and free its slots."""
        if running.table is None:
            remove(self.waiting, running)
        else:
            self.leave(running)
        self.blocked = False

    def leave(self, running: Running) -> None:
        """Free a running request's slots, less those that the prefix cache takes over."""
        remove(self.running, running)
        if self.prefix_cache is not None and running.request.finish_reason != "error":
            self.prefix_cache.keep(running)
        self.shut(running)


def remove(ordered: list[Running], running: Running) -> None:
    """Take a request out of a list in the order of ranks."""
    place = bisect_left(ordered, running.rank, key=by_rank)
    assert ordered[place] is running
    del ordered[place]
