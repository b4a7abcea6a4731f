"""Lets a run end at a step's edge when it is told to: its state is saved first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """Whether someone asked the run to stop.

    Attributes:
        signal: Which signal asked; none while nobody did.
    """

    def __init__(self):
        self.signal: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        signal.signal(number, signal.SIG_DFL)  # a second one does not wait for the state to be saved


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Catches SIGTERM and SIGINT while inside; in a thread, where signals cannot be caught, nothing is."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.signal(number, request.note) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
