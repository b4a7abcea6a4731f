"""Who is told of every step, such as metrics."""

from collections.abc import Sequence
from typing import Protocol

from foredraft.core.fault_log import log_fault
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.engine.running import Running
from foredraft.serving.faults import logger

Told = tuple[Running, TokenEvent, RequestOutput | None]


class StepObserver(Protocol):
    """Told what every step wrote, on the engine's thread, while requests wait: it must be quick."""

    def step(self, engine: Engine, events: Sequence[Told]) -> None:
        """After a step, with its events and the ends since the last call that no step made, such as timeouts.

        Where the engine has nothing to do after such ends, they come without a step.
        """


class Observers:
    """Every observer of a worker. One that fails is logged once and goes on being told; serving does not notice."""

    def __init__(self, observers: Sequence[StepObserver]):
        self.observers = tuple(observers)
        self.failed: set[int] = set()

    def step(self, engine: Engine, events: Sequence[Told]) -> None:
        for place, observer in enumerate(self.observers):
            try:
                observer.step(engine, events)
            except Exception as error:
                if place not in self.failed:
                    log_fault(logger, f"{type(observer).__name__}, which observes steps, failed", error)
                self.failed.add(place)
