"""How long things take: counts by upper bound, cheap enough for every token of every request."""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from math import inf

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

# Seconds. Small models on a fast machine and long prompts on a slow one both find their place.
FIRST_TOKEN_BOUNDS = (0.005, 0.01, 0.02, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0)
BETWEEN_TOKENS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
WHOLE_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0)


class Latencies:
    """A histogram with one writer; readers of other threads see whole observations.

    Attributes:
        bounds: Upper bounds in seconds, ascending; what lies above the last is counted too.
        counts: Observations up to each bound and above the one before it, and those above all, [bounds + 1].
        seconds: Their sum.
    """

    __slots__ = ("bounds", "counts", "seconds")

    def __init__(self, bounds: Sequence[float]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds

    def family(self, name: str, help_text: str, labels: dict[str, str]) -> HistogramMetricFamily:
        """What Prometheus reads: cumulative counts by bound, and the sum."""
        counts, seconds = list(self.counts), self.seconds
        ends = [floatToGoString(bound) for bound in (*self.bounds, inf)]
        family = HistogramMetricFamily(name, help_text, labels=list(labels))
        family.add_metric(list(labels.values()), list(zip(ends, accumulate(counts), strict=True)), seconds)
        return family
