"""Who runs in the next step: first come, first served, as far as slots and the row budget allow."""

from collections import deque
from time import perf_counter

from foredraft.core.errors import SlotsError
from foredraft.engine.running import Running, Work
from foredraft.model.slot_pool import SlotPool

MAX_STEP_ROWS = 512


def slots_needed(running: Running) -> int:
    """Most slots the request can ever hold at once: its longest text and one draft."""
    request = running.request
    draft = max(option.speculation.scratch_nodes + option.drafter.needs.scratch for option in running.options)
    return len(request.prompt) + request.params.max_new_tokens + draft


class Scheduler:
    """Waiting and running requests of one engine.

    A request is admitted only when the pool can hold its worst case beside that of every running one, so a running
    request never lacks a slot.
    """

    def __init__(self, pool: SlotPool, max_batch: int):
        self.pool, self.max_batch = pool, max_batch
        self.waiting: deque[Running] = deque()
        self.running: list[Running] = []

    def submit(self, requests: list[Running]) -> None:
        """Queue requests. Raises `SlotsError`, queueing none, when the pool could not hold one even alone."""
        for running in requests:
            needed = slots_needed(running)
            if needed > self.pool.size:
                raise SlotsError(
                    f"the request needs {needed} cache slots (prompt, max_new_tokens and draft) and the cache has "
                    f"{self.pool.size}; shorten it or raise cache_tokens"
                )
        self.waiting += requests

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.running

    def admit(self) -> None:
        """Let waiting requests in, in order, while the batch and the pool have room."""
        promised = sum(slots_needed(running) for running in self.running)
        while self.waiting and len(self.running) < self.max_batch:
            promised += slots_needed(self.waiting[0])
            if promised > self.pool.size:
                return
            running = self.waiting.popleft()
            running.table = self.pool.open(len(running.request.prompt) + running.request.params.max_new_tokens)
            running.started = perf_counter()
            self.running.append(running)

    def next_batch(self) -> list[Work]:
        """Work for one step: every decoding request, then prompt chunks while rows are left."""
        budget, batch = MAX_STEP_ROWS, []
        for running in sorted(self.running, key=lambda running: running.request.pending > 1):
            chunk = min(running.request.pending, max(budget, 0))
            if chunk:
                batch.append(Work(running=running, chunk=chunk))
                budget -= chunk
        return batch

    def finish(self, running: Running) -> None:
        """Forget a request that has ended or was cancelled, waiting or running, and free its slots."""
        if running.table is None:
            self.waiting.remove(running)
            return
        self.running.remove(running)
        self.pool.close(running.table)
