"""What the engine's own thread does: takes orders between steps, steps, tells what was written."""

from collections import deque
from collections.abc import Callable
from functools import partial
from math import ceil, inf
from queue import Empty, SimpleQueue
from statistics import fmean
from time import monotonic

from foredraft.core.errors import ConfigError, ForedraftError, UserError
from foredraft.core.fault_log import log_fault
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.engine.running import Running
from foredraft.serving import faults
from foredraft.serving.errors import BusyError, EngineFailure, StoppingError
from foredraft.serving.faults import logger
from foredraft.serving.mailbox import Update
from foredraft.serving.observers import Observers, Told
from foredraft.serving.post import Post, settle
from foredraft.serving.ticket import Seat, Ticket, without_laws

ORDERS_PER_STEP = 16  # preparing an order takes time from those that run
FATAL_FAULTS = 3  # failures in a row after which the engine is given up
QUIET_SECONDS = 0.25  # without an order, before slots are checked: with a large pool that takes milliseconds
RECENT = 64  # continuations whose duration says how long the queue takes


class EngineLoop:
    """Serves one engine. All of it but `calls` belongs to the thread that runs `run`.

    A failure of the engine as a whole ends what runs with an error; what waits is served next. After `FATAL_FAULTS` of
    them without a good step between, the engine is dead and everybody is told. Whatever a call into the engine raises
    is caught, Rust panics of the grammar library included, which are no `Exception`.

    Attributes:
        calls: What other threads want done here, in order; the thread sleeps on it while nothing is open.
        arrivals: Orders that have come and not been given to the engine.
        seats: Every continuation the engine has and its ticket.
        deadline: The earliest of all tickets.
        stop_at: When stopping what is left is ended, by `monotonic`; none while orders are taken.
        dead: Whether the engine was given up.
        began: When the current step began, by `monotonic`; none between steps.
        steps, faults: Steps that succeeded, failures of the engine as a whole.
        row: Steps that failed since the last one that succeeded.
        recent: Seconds that continuations took lately.
        early: Ends since the observers were told that no step has made.
        unchecked: Whether slots were in use since they were checked for leaks.
    """

    def __init__(self, engine: Engine, *, max_waiting: int, observers: Observers):
        self.engine, self.max_waiting, self.observers = engine, max_waiting, observers
        self.calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.arrivals: deque[Ticket] = deque()
        self.seats: dict[Running, Seat] = {}
        self.deadline = inf
        self.stop_at: float | None = None
        self.dead = False
        self.began: float | None = None
        self.steps = self.faults = self.row = 0
        self.recent: deque[float] = deque(maxlen=RECENT)
        self.early: list[Told] = []
        self.unchecked = False
        self.post = Post()

    def run(self) -> None:
        """Serve until stopped or dead."""
        try:
            while not self.over:
                self.take_calls()
                self.turn()
            self.check_slots()
            self.engine.keep_experience(now=True)
        except BaseException as error:  # a fault of our own: nobody may be left waiting for it
            log_fault(logger, "serving failed", error)
            self.die()

    @property
    def over(self) -> bool:
        return self.dead or (self.stop_at is not None and not self.seats and not self.arrivals)

    def take_calls(self) -> None:
        """Do what other threads want; sleep until they want something while there is nothing else to do."""
        if not self.seats and not self.arrivals:
            self.rest()
        while not self.calls.empty():
            self.calls.get()()

    def rest(self) -> None:
        """Sleep until there is a call, and make it. A quiet moment is used to look for leaked slots, and to keep what
        was learned."""
        try:
            call = self.calls.get(timeout=QUIET_SECONDS if self.unchecked else None)
        except Empty:
            self.check_slots()
            self.engine.keep_experience()
            call = self.calls.get()
        call()

    def turn(self) -> None:
        """Whatever is due between two steps, and a step."""
        self.end_overdue()
        self.take_arrivals()
        self.send()  # a step may take long, and callers wait for their answers
        events = self.step() if self.seats else []
        if events or self.early:
            early, self.early = self.early, []
            self.observers.step(self.engine, [*early, *events])
        self.send()

    def arrive(self, ticket: Ticket) -> None:
        self.arrivals.append(ticket)

    def take_arrivals(self) -> None:
        """Refuse what finds no place, prepare the first of the others; the rest come after the next step."""
        kept: deque[Ticket] = deque()
        prepared = ahead = 0
        for ticket in self.arrivals:
            refusal = self.refusal(ticket, ahead)
            if ticket.withdrawn or refusal is not None:
                self.answer(ticket, refusal)
            elif prepared < ORDERS_PER_STEP:
                self.prepare(ticket)
                prepared += 1
            else:
                kept.append(ticket)
                ahead += ticket.order.continuations
        self.arrivals = kept

    def refusal(self, ticket: Ticket, ahead: int) -> ForedraftError | None:
        """Why the order is not taken, where `ahead` continuations that are not queued yet go before it."""
        asked, scheduler = ticket.order.continuations, self.engine.scheduler
        if self.stop_at is not None:
            return StoppingError("the server is shutting down")
        most = self.max_waiting + scheduler.max_batch
        if asked > most:
            return ConfigError(f"the call asks for {asked} continuations; this server takes at most {most} at once")
        if len(scheduler.waiting) + len(scheduler.running) + ahead + asked > most:
            seconds = self.retry_after()
            waiting = len(scheduler.waiting) + ahead
            return BusyError(f"{waiting} requests are waiting; try again in {seconds} s", retry_after=seconds)
        return None

    def retry_after(self) -> int:
        """Seconds in which what waits will have been served, as far as recent requests tell; at least 1."""
        scheduler = self.engine.scheduler
        turns = len(scheduler.waiting) / max(1, len(scheduler.running))
        return max(1, ceil(turns * fmean(self.recent or [0.0])))

    def prepare(self, ticket: Ticket) -> None:
        """Give an order to the engine."""
        order = ticket.order
        try:
            ticket.open = self.engine.submit(order.prompts, order.sampling, order.speculation, priority=order.priority)
        except UserError as error:
            self.answer(ticket, error)
        except BaseException as error:
            log_fault(logger, "preparing a request failed", error)
            for stray in [running for running in self.engine.scheduler.waiting if running not in self.seats]:
                faults.drop(self.engine, stray)
            self.answer(ticket, ForedraftError(f"preparing the request failed with {type(error).__name__}"))
        else:
            self.seats |= {running: Seat(ticket) for running in ticket.open}
            self.deadline = min(self.deadline, ticket.deadline)
            self.unchecked = True
            self.answer(ticket)

    def withdraw(self, ticket: Ticket) -> None:
        """The caller wants no more of it."""
        ticket.withdrawn = True
        self.end_ticket(ticket, "cancelled")

    def end_overdue(self) -> None:
        now = monotonic()
        if self.stop_at is not None and now >= self.stop_at:
            for ticket in self.tickets():
                self.end_ticket(ticket, "shutdown")
        if now >= self.deadline:
            for ticket in self.tickets():
                if now >= ticket.deadline:
                    self.end_ticket(ticket, "timeout")
            self.deadline = min((ticket.deadline for ticket in self.tickets()), default=inf)

    def tickets(self) -> list[Ticket]:
        return list({id(seat.ticket): seat.ticket for seat in self.seats.values()}.values())

    def stop(self, deadline: float) -> None:
        """Take no more orders; what has not ended by `deadline` is ended then. The earliest deadline counts."""
        self.stop_at = deadline if self.stop_at is None else min(self.stop_at, deadline)

    def step(self) -> list[Told]:
        """One step of the engine, told to readers; its events."""
        self.began = monotonic()
        try:
            events = self.engine.step()
        except BaseException as error:
            self.fail(error)
            return []
        finally:
            self.began = None
        self.steps, self.row = self.steps + 1, 0
        for running, event, output in events:
            self.tell(running, event, output)
        return events

    def tell(self, running: Running, event: TokenEvent, output: RequestOutput | None) -> None:
        """Send an event to its reader; with an output the continuation is over."""
        seat = self.seats.get(running)
        if seat is None:
            return  # one whose end failed inside the engine may still write; its reader has had its end
        ticket = seat.ticket
        seat.note(event)
        self.post.add(ticket.loop, partial(ticket.mailbox.put, Update(without_laws(event), output)))
        if output is not None:
            del self.seats[running]
            ticket.open.remove(running)
            self.recent += [output.seconds] if output.seconds else []  # none: it never ran

    def end_ticket(self, ticket: Ticket, reason: str) -> None:
        for running in list(ticket.open):
            self.end(running, faults.end(self.engine, running, reason))

    def end(self, running: Running, output: RequestOutput) -> None:
        """Tell that a continuation has ended between steps."""
        event = self.seats[running].rest(output)
        self.tell(running, event, output)
        self.early.append((running, event, output))

    def answer(self, ticket: Ticket, error: ForedraftError | None = None) -> None:
        self.post.add(ticket.loop, partial(settle, ticket.answer, error))

    def send(self) -> None:
        """Send the post; orders whose event loop is closed are taken back."""
        closed = self.post.send()
        for ticket in self.tickets() if closed else []:
            if ticket.loop in closed:
                self.calls.put(partial(self.withdraw, ticket))

    def fail(self, error: BaseException) -> None:
        """The engine has failed as a whole: end what was running, and give the engine up if that goes on."""
        log_fault(logger, "the engine failed", error)
        self.faults, self.row = self.faults + 1, self.row + 1
        waiting = set(self.engine.scheduler.waiting)
        for running in [running for running in self.seats if running not in waiting]:
            self.end(running, faults.failed(faults.end(self.engine, running, "error"), error))
        if self.row >= FATAL_FAULTS:
            self.die()

    def die(self) -> None:
        """Give the engine up: everybody who has not got an end is told."""
        self.dead = True
        for ticket in self.tickets():
            self.post.add(ticket.loop, partial(ticket.mailbox.fail, failure()))
            ticket.open.clear()  # one who gives up only now has nothing left to withdraw
        for running in self.seats:
            faults.drop(self.engine, running)
        self.seats.clear()

    def check_slots(self) -> None:
        """Look for leaked slots, where nothing is open and some were in use since the last time."""
        if not self.unchecked or self.seats:
            return
        self.unchecked, cache = False, self.engine.prefix_cache
        try:
            self.engine.target.pool.check_integrity([])
            if cache is not None:
                cache.check_integrity()
        except BaseException as error:
            log_fault(logger, "the check of cache slots failed", error)
            self.faults += 1

    def close(self) -> None:
        """Answer what came while the thread was ending. Nobody may add to `calls` any more."""
        while not self.calls.empty():
            self.calls.get()()
        for ticket in self.arrivals:
            self.answer(ticket, failure() if self.dead else StoppingError("the server is shutting down"))
        self.arrivals.clear()
        self.post.send()


def failure() -> EngineFailure:
    """One for each caller: an error that is raised keeps the frames it passed."""
    return EngineFailure("the engine has stopped working; the server must be restarted")
