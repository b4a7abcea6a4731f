"""Keeps on disk what the policy has learned of a target: the next start need not find it out again."""

from time import monotonic

from foredraft.engine import kept_record
from foredraft.engine.policy.experience import Experience
from foredraft.model.target import Target

KIND = "experience"
EVERY = 30.0  # seconds between two writes


class ExperienceStore:
    """Reads and writes the experience with one target.

    Attributes:
        target: Whose.
        written: When it was last written, by `monotonic`; none before the first time.
    """

    def __init__(self, target: Target):
        self.target = target
        self.written: float | None = None

    def read(self) -> Experience:
        """What is on disk; none at all where there is nothing, or nothing of ours."""
        try:
            return Experience.from_record(kept_record.stored(KIND, self.target))
        except ValueError:
            return Experience()

    def write(self, experience: Experience, *, now: bool = False) -> None:
        """Put it on disk, if the last time is a while ago or it must be `now`."""
        if now or self.written is None or monotonic() - self.written >= EVERY:
            kept_record.store(KIND, experience.record(), self.target)
            self.written = monotonic()
