"""Finds out which request makes a step fail."""

from foredraft.engine.running import Running, Work


class Quarantine:
    """Requests of a step that failed as a whole run alone, one a step, until each has shown whether it is to blame.

    Attributes:
        suspects: Those that still have to.
    """

    def __init__(self) -> None:
        self.suspects: list[Running] = []

    def admitted(self, batch: list[Work]) -> list[Work]:
        """What of `batch` may run: all of it, or one suspect alone."""
        suspects = set(map(id, self.suspects)) if self.suspects else ()
        alone = [work for work in batch if id(work.running) in suspects][:1]
        if not alone:
            self.suspects = []
        return alone or batch

    def caught(self, batch: list[Work]) -> list[Work]:
        """The work that made its step fail: whoever was alone in it, else nobody yet."""
        undecided = [work for work in batch if work.event is None]
        if len(undecided) > 1:
            self.suspects = [work.running for work in undecided]
            return []
        self.cleared(undecided)
        return undecided

    def cleared(self, batch: list[Work]) -> None:
        """These have run; nobody suspects them."""
        if self.suspects:
            done = {id(work.running) for work in batch}
            self.suspects = [running for running in self.suspects if id(running) not in done]
