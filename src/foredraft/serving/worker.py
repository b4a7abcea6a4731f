"""The engine in a thread of its own, as event loops use it."""

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf
from threading import Lock, Thread
from time import monotonic

from foredraft.core.sampling_params import whole, within
from foredraft.engine.engine import Engine
from foredraft.serving.engine_loop import EngineLoop, failure
from foredraft.serving.errors import StoppingError
from foredraft.serving.generation import Generation, Order
from foredraft.serving.mailbox import Mailbox
from foredraft.serving.observers import Observers, StepObserver
from foredraft.serving.snapshot import Snapshot
from foredraft.serving.ticket import Ticket


class EngineWorker:
    """Owns the only thread that steps an engine; event loops never wait for a forward.

    Orders cross to the thread by a queue, updates come back by one call for each step and event loop. Once it has
    started, nobody else may call anything of the engine that changes it.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_waiting: int = 1000,
        max_pending_events: int = 256,
        observers: Sequence[StepObserver] = (),
    ):
        """Serve `engine`, where at most `max_waiting` continuations wait beside a full batch.

        A reader of a generation may lag by `max_pending_events` updates before further ones are joined.
        """
        whole("max_waiting", max_waiting, 0)
        whole("max_pending_events", max_pending_events, 1)
        self.engine, self.max_pending_events = engine, max_pending_events
        self.serving = EngineLoop(engine, max_waiting=max_waiting, observers=Observers(observers))
        self.thread = Thread(target=self.run, name="foredraft-engine", daemon=True)
        self.gate = Lock()  # held while an order is queued, so that none is queued behind the thread's back
        self.closed = False
        self.stopping = False

    def start(self) -> None:
        """Start the thread; once."""
        self.thread.start()

    def run(self) -> None:
        self.serving.run()
        with self.gate:
            self.closed = True
        self.serving.close()

    async def submit(self, order: Order) -> Generation:
        """Queue an order; returns once the engine has taken it.

        Raises `UserError` kinds for what cannot be served, `BusyError` while the queue is full, `StoppingError` when
        stopping, `EngineFailure` when the engine has died, and a plain `ForedraftError` where preparing it failed.
        """
        assert self.thread.ident is not None, "the worker has not been started"
        mailbox = Mailbox(order.continuations, self.max_pending_events)
        deadline = inf if order.timeout is None else monotonic() + order.timeout
        answer = asyncio.get_running_loop().create_future()
        ticket = Ticket(order=order, mailbox=mailbox, answer=answer, deadline=deadline)
        withdraw = partial(self.serving.calls.put, partial(self.serving.withdraw, ticket))
        self.send(ticket)
        try:
            await answer
        except asyncio.CancelledError:
            withdraw()
            raise
        return Generation(mailbox, withdraw)

    def send(self, ticket: Ticket) -> None:
        with self.gate:
            if self.closed or self.stopping:
                raise failure() if self.serving.dead else StoppingError("the server is shutting down")
            self.serving.calls.put(partial(self.serving.arrive, ticket))

    async def stop(self, grace_seconds: float) -> None:
        """Refuse new orders, let what is there finish for `grace_seconds`, end the rest with reason shutdown.

        Returns when the thread has ended; may be called again, then the earliest end counts.
        """
        within("grace_seconds", grace_seconds, 0, 24 * 3600)
        self.stopping = True
        if self.thread.ident is None:
            return
        self.serving.calls.put(partial(self.serving.stop, monotonic() + grace_seconds))
        await asyncio.to_thread(self.thread.join)

    def snapshot(self) -> Snapshot:
        """How serving stands; from any thread. Each figure is true for a moment of its own."""
        serving, scheduler, pool = self.serving, self.engine.scheduler, self.engine.target.pool
        cache = self.engine.prefix_cache
        return Snapshot(
            alive=self.thread.is_alive() and not serving.dead,
            stopping=self.stopping,
            waiting=len(scheduler.waiting) + len(serving.arrivals),
            running=len(scheduler.running),
            slots_used=pool.size - pool.free,
            slots_total=pool.size,
            slots_cached=cache.cached_tokens if cache is not None else 0,
            prefix_hits=cache.hits if cache is not None else 0,
            steps=serving.steps,
            faults=serving.faults,
            busy_since=serving.began,
        )
