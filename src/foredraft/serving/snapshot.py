"""How serving stands, as any thread may ask."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The state of an engine worker at one moment.

    Attributes:
        alive: Whether its thread works.
        stopping: Whether it takes no new orders.
        waiting, running: Continuations in the queue and in the batch.
        slots_used, slots_total: Cache slots of the target; those of kept texts count as used.
        slots_cached: Those of kept texts, read by running requests or not.
        prefix_hits: Requests that went on from a kept text; 0 where the engine keeps none.
        steps: Steps of the engine that succeeded.
        faults: Failures of the engine as a whole since the start.
        busy_since: When the step that runs now began, by `time.monotonic`; none between steps.
    """

    alive: bool
    stopping: bool
    waiting: int
    running: int
    slots_used: int
    slots_total: int
    slots_cached: int
    prefix_hits: int
    steps: int
    faults: int
    busy_since: float | None
