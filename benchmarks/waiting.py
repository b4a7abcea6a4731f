"""CPU time that contestants take while another one is timed: it shows that they rest."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter


class Waiting:
    """What is noted of processes that wait.

    Attributes:
        seconds: How long each waited while others were timed.
        cpu_seconds: CPU time it took meanwhile.
    """

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.cpu_seconds: Counter[str] = Counter()

    @contextmanager
    def during(self, name: str, clocks: Mapping[str, Callable[[], float]]) -> Iterator[None]:
        """Process `name` works; the others wait. `clocks` tell the CPU seconds each has used."""
        before = {other: clock() for other, clock in clocks.items() if other != name}
        start = perf_counter()
        yield
        seconds = perf_counter() - start
        for other, used in before.items():
            self.seconds[other] += seconds
            self.cpu_seconds[other] += max(0.0, clocks[other]() - used)

    def shares(self) -> dict[str, float]:
        """Cores that each kept busy while it waited, 0 where it rested."""
        return {name: self.cpu_seconds[name] / seconds for name, seconds in self.seconds.items()}
