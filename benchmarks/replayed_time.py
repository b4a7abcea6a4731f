"""Time of which only the costs are kept: real texts and real decisions, in which no disturbance of the machine shows.

First it is the machine's own and watches what steps, drafts and choices take. Then it replays: it stands still, but for
the median of what was seen, for each piece of work as it is done. Two settings that are alike take exactly as long
then, and a difference of a hundredth is one. What it cannot show is what a machine does that is not as usual.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from math import log2
from statistics import median
from time import perf_counter

import numpy as np

from foredraft import ConfigError, Engine
from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import require
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter, DraftTask
from foredraft.engine.policy.policy import Policy, mean_context, sampling
from foredraft.engine.running import Work
from foredraft.engine.step_costs import StepCosts, option_label
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import Target

ENOUGH = 5  # observations of one size from which on their median speaks for it
PARTS = ("steps", "calls", "choices")
THOUGHTS = ("nothing to choose", "decided", "held", "weighed", "looked first", "by routine")
CLASSES = 4  # sizes of steps told apart in each doubling of their rows
LOOKUP = dict.fromkeys(("ngram", "suffix"), "lookup")  # they ask nothing of the target: its steps are alike
Size = tuple[int, ...]


class Medians:
    """Of what was seen by kind and size: where a size was hardly seen, of the nearest of its kind, the first part of a
    size before the second."""

    def __init__(self) -> None:
        self.seen: dict[Hashable, dict[Size, list[float]]] = defaultdict(lambda: defaultdict(list))
        self.known: dict[tuple[Hashable, Size], float | None] = {}

    def saw(self, kind: Hashable, size: Size, value: float) -> None:
        self.seen[kind][size].append(value)

    def of(self, kind: Hashable, size: Size) -> float | None:
        """None where nothing of the kind was seen."""
        if (kind, size) not in self.known:
            sizes = self.seen.get(kind, {})
            sure = {its: values for its, values in sizes.items() if len(values) >= ENOUGH} or sizes
            nearest = min(sure, key=lambda its: distance(its, size), default=None)
            self.known[kind, size] = None if nearest is None else median(sure[nearest])
        return self.known[kind, size]

    def told_apart(self, kinds: Sequence[Hashable]) -> Hashable:
        """The first of some kinds of which any size was seen often enough, else the last."""
        seen = (kind for kind in kinds if any(len(its) >= ENOUGH for its in self.seen.get(kind, {}).values()))
        return next(seen, kinds[-1])

    def record(self) -> list[dict]:
        """What is known, as JSON holds it."""
        return [
            {"kind": kind, "size": list(size), "seen": len(values), "median": median(values)}
            for kind, sizes in self.seen.items()
            for size, values in sorted(sizes.items())
        ]

    @classmethod
    def from_record(cls, record: list[dict]) -> "Medians":
        own = cls()
        for row in record:
            own.seen[row["kind"]][tuple(row["size"])] = [row["median"]] * row["seen"]
        return own


def stem(label: str) -> str:
    """What ways of one drafter have in common that draft chains of different lengths."""
    name, _, length = label.rpartition(" ")
    return name if length.isdigit() else label


def distance(left: Size, right: Size) -> Size:
    return tuple(abs(own - other) for own, other in zip(left, right, strict=True))


class ReplayedTime:
    """The clock of all engines of a run.

    Attributes:
        table: Measured forwards, which say how a step's time grows between the sizes seen.
        now: Seconds replayed; none as long as it watches.
        steps: What steps take to their forward in `table`, without drafts and choices, by requests and rows.
        calls: What calls of drafters take, by requests and the deepest draft that came back.
        firsts: Such calls with requests they were new to: seconds, positions read, kind and size.
        readings: Seconds a position that a drafter takes to read a new request, by label.
        choices: What the policy takes for itself, by requests.
        within: Seconds of calls and choices in the step being watched, with the watching.
        called: Seconds of all calls, with the watching.
    """

    def __init__(self, table: StepCosts) -> None:
        self.table, self.now = table, None
        self.steps, self.calls, self.choices = Medians(), Medians(), Medians()
        self.firsts: list[tuple[float, int, str, Size]] = []
        self.readings: dict[str, float] = {}
        self.within = self.called = 0.0

    def __call__(self) -> float:
        return perf_counter() if self.now is None else self.now

    def replay(self, table: StepCosts | None = None) -> None:
        """From now on replay what was seen; `table` is what has been measured by now, drafts and all."""
        self.table = table or self.table
        rates = defaultdict(list)
        for seconds, positions, label, size in self.firsts:
            rates[label].append(max(0.0, seconds - (self.calls.of(label, size) or 0.0)) / positions)
        self.readings = {label: median(its) for label, its in rates.items()}
        self.now = 0.0

    def took_call(self, tasks: Sequence[DraftTask], depth: int, unread: int, seconds: float) -> None:
        """A drafter has drafted so deep, and read so many positions for those of `tasks` that were new to it."""
        label, size = option_label(tasks[0].speculation), (len(tasks), depth)
        if self.now is not None:
            self.now += self.call_seconds(label, size) + unread * self.readings.get(label, 0.0)
        elif unread:
            self.firsts.append((seconds, unread, label, size))
        else:
            self.calls.saw(label, size, seconds)

    def call_seconds(self, label: str, size: Size) -> float:
        """A call of a way that was never seen is taken to cost a plain step, as the policy takes it.

        Where drafts of that depth were hardly seen for so many requests, it lies between those of the nearest depths:
        by the same way, or where that has one depth alone also by ways of the same drafter with other lengths.
        """
        requests, depth = size
        known = self.depths_of(label, requests)
        if depth not in known and len(known) < 2:
            for other in [its for its in self.calls.seen if stem(its) == stem(label)]:
                known = self.depths_of(other, requests) | known
        if known:
            depths, seconds = zip(*sorted(known.items()), strict=True)
            return float(np.interp(depth, depths, seconds))
        seconds = self.calls.of(label, size)
        return self.table.forward_seconds(requests, requests, 0) if seconds is None else seconds

    def depths_of(self, label: str, requests: int) -> dict[int, float]:
        """What calls for so many requests take by the depth of their drafts, of depths seen often enough."""
        sizes = self.calls.seen.get(label, {}).items()
        sure = [size for size, its in sizes if size[0] == requests and len(its) >= ENOUGH]
        return {depth: self.calls.of(label, (requests, depth)) for _, depth in sure}

    def watched(self, seconds: float) -> None:
        """A call and the watching of it have taken so long: neither is part of the step or of a choice."""
        self.within += seconds
        self.called += seconds

    def took_choice(self, kind: str, requests: int, seconds: float) -> None:
        if self.now is not None:
            self.now += self.choices.of(kind, (requests,)) or 0.0
        else:
            self.within += seconds
            self.choices.saw(kind, (requests,), seconds)

    def commits(self, batch: Sequence[Work]) -> None:
        """A step is as good as done: a replay lets pass what it takes without drafts and choices."""
        if self.now is not None and batch:
            kind = self.steps.told_apart(kinds_of(batch))
            self.now += self.forward_seconds(batch) * (self.steps.of(kind, size_of(batch)) or 1.0)

    def took_step(self, batch: Sequence[Work], seconds: float) -> None:
        """A step has taken so many seconds, drafts and choices and all."""
        if self.now is None and batch:
            for kind in kinds_of(batch):
                self.steps.saw(kind, size_of(batch), (seconds - self.within) / self.forward_seconds(batch))

    def forward_seconds(self, batch: Sequence[Work]) -> float:
        return self.table.forward_seconds(rows_of(batch), len(batch), mean_context(batch))

    def record(self) -> dict:
        """What it replays, as JSON holds it."""
        seen = {part: getattr(self, part).record() for part in PARTS}
        return {"table": self.table.record(), "readings": self.readings} | seen

    @classmethod
    def from_record(cls, record: dict) -> "ReplayedTime":
        """A clock that replays from the beginning what another one has watched.

        Raises `ConfigError` for what is no record of one.
        """
        try:
            own = cls(StepCosts.from_record(record["table"]))
            for part in PARTS:
                setattr(own, part, Medians.from_record(record[part]))
            own.readings, own.now = dict(record["readings"]), 0.0
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"these are no costs to replay: {error}") from None
        strange = sorted(kind for kind in own.choices.seen if not kind.removeprefix("after ").startswith(THOUGHTS))
        require(not strange, f"of another version: they count choices as {strange}, which would take no time now")
        return own


def rows_of(batch: Sequence[Work]) -> int:
    return sum(work.chunk + len(work.tree) for work in batch)


def size_of(batch: Sequence[Work]) -> Size:
    """Requests and rows, these in classes."""
    return len(batch), round(CLASSES * log2(rows_of(batch)))


def kinds_of(batch: Sequence[Work]) -> list[str]:
    """Steps of a kind take alike to their forward, also those whose drafts others have made where these were hardly
    seen: heads have the target hand out states, a network's call has read what the caches held."""
    how = "sampled" if sampling(batch) else "greedy"
    if any(work.chunk > 1 for work in batch):
        return [f"reading, {how}"]
    makers = sorted({LOOKUP.get(maker, maker) for work in batch for maker in work.tree.drafters})
    apart = [f"drafted by {' and '.join(makers)}, {how}"] if makers else []
    return [*apart, f"{drafted(batch)}, {how}"]


def drafted(batch: Sequence[Work]) -> str:
    return "drafted" if any(len(work.tree) for work in batch) else "plain"


class ReplayedEngine(Engine):
    """An engine by the clock of `time`."""

    def __init__(self, target: Target, *, time: ReplayedTime, **settings) -> None:
        self.time = time
        super().__init__(target, clock=time, **settings)
        self.policy = ReplayedPolicy(draft_rows=self.policy.draft_rows, time=time)

    def drafter_for(self, config: SpeculationConfig) -> Drafter:
        key = config.drafter_key
        if key not in self.drafters:
            self.drafters[key] = ReplayedDrafter(super().drafter_for(config), self.time)
        return self.drafters[key]

    def run_step(self, batch: list[Work]) -> None:
        self.time.within, start = 0.0, perf_counter()
        super().run_step(batch)
        self.time.took_step(batch, perf_counter() - start)

    def commit(self, batch: list[Work]) -> None:
        self.time.commits(batch)
        super().commit(batch)


class ReplayedPolicy(Policy):
    """The policy, whose own time is watched and replayed too."""

    def __init__(self, *, draft_rows: int, time: ReplayedTime) -> None:
        super().__init__(draft_rows=draft_rows, clock=time)
        self.time = time

    def draft(self, batch: list[Work], pool: SlotPool) -> None:
        start, called = perf_counter(), self.time.called
        super().draft(batch, pool)
        seconds = perf_counter() - start - (self.time.called - called)
        self.time.took_choice(f"{self.thought}, {drafted(batch)}", len(batch), seconds)

    def learn(self, batch: list[Work], *, draft: float, rest: float) -> None:
        start, before = perf_counter(), len(self.heard_of.drafts)
        super().learn(batch, draft=draft, rest=rest)
        seconds, taken_in = perf_counter() - start, len(self.heard_of.drafts) < before
        kind = f"after {self.thought}, taken in" if taken_in else f"after {self.thought}, {drafted(batch)}"
        self.time.took_choice(kind, len(batch), seconds)

    @property
    def thought(self) -> str:
        """What the step was thought about, and whether costs are learned from it: so long that takes."""
        standing, routine = self.standing, self.standing.routine
        nothing, decided, held, weighed, looked, by_routine = THOUGHTS
        if standing.prices is None:
            return nothing
        if not standing.steps:
            return decided
        if routine is None:
            return held
        first = weighed if routine.weighs else looked if routine.firsts else by_routine
        return f"{first}, learned from" if self.noted else first


class ReplayedDrafter:
    """A drafter whose calls are watched and replayed. It is the drafter itself in everything else."""

    def __init__(self, drafter: Drafter, time: ReplayedTime) -> None:
        self.drafter, self.time = drafter, time
        self.known: set[int] = set()  # requests

    def __getattr__(self, name: str) -> object:
        return getattr(self.drafter, name)

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        start = perf_counter()
        trees = self.drafter.propose(tasks)
        seconds = perf_counter() - start
        new = [task.request for task in tasks if task.request.id not in self.known]
        self.known |= {request.id for request in new}
        depth = max(max(tree.depths, default=0) for tree in trees)
        self.time.took_call(tasks, depth, sum(len(request.tokens) for request in new), seconds)
        self.time.watched(perf_counter() - start)
        return trees
