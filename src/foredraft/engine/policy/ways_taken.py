"""Which ways to draft were taken, and what plain decoding would have taken instead."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.policy.exploration import Exploration
from foredraft.engine.running import Work

PLAIN_LABEL, OTHER_LABEL = "plain", "other"
MOST_LABELS = 64  # ways told apart; requests may bring any number of them


@dataclass(eq=False)
class WaysTaken:
    """Counts over all requests, which each request's own statistics hold, too.

    Attributes:
        choices: Steps by the way chosen.
        plain_seconds: What plain decoding would have taken for all tokens written so far.
    """

    choices: Counter[str] = field(default_factory=Counter)
    plain_seconds: float = 0.0

    def count_works(self, label: str, works: Sequence[Work], plain_token: float) -> None:
        """Count the choice of `label` for `works`, where each token would have taken so long without drafts."""
        for work in works:
            self.count(label, work.running.request.statistics, 1, plain_token * len(work.event.tokens))

    def count(self, label: str, statistics: SpeculationStatistics, steps: int, plain_seconds: float) -> None:
        """Count a choice for so many steps of a request, and what plain decoding would have taken for the same
        tokens."""
        label = label if label in self.choices or len(self.choices) < MOST_LABELS else OTHER_LABEL
        self.choices[label] += steps
        statistics.choices[label] = statistics.choices.get(label, 0) + steps
        self.note_plain(statistics, plain_seconds)

    def note_plain(self, statistics: SpeculationStatistics, seconds: float) -> None:
        statistics.plain_seconds += seconds
        self.plain_seconds += seconds

    def report(self, exploration: Exploration) -> dict[str, Any]:
        """Choices by way, the estimated speed-up over plain decoding, and what `exploration` has cost."""
        return {
            "choices": dict(self.choices),
            "speed_up": self.plain_seconds / exploration.busy if exploration.busy else None,
            "exploration_share": exploration.share,
            "experiments": exploration.tries,
        }
