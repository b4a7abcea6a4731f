"""Takes the turns of the benchmark of the forward: every contestant on every cell, one at a time, in changing order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from statistics import median
from time import perf_counter

import torch
from forward_contestants import INT8, MODULE, NATIVE, NATIVE_LINE, ContestantFailure, Worker
from forward_models import Models
from forward_shapes import CONTEXT_LENGTH, random_tokens
from waiting import Waiting

from foredraft.evaluation.turns import rotated
from foredraft.model.native_runtime import extension, installed

BUFFER_BYTES = 1 << 29  # far more than any last-level cache
BUFFER_READS = 7
FARTHEST = (
    0.1  # logits from those of fp32, relative; rounding in bf16 is at 0.03, a rotation done wrongly at 0.5 or more
)
WRITE_CONTEXT = 128  # of the texts
WARM_UP_TOKENS = 8
OURS = (NATIVE, INT8, MODULE)
TIMED = ("measure", "write")  # requests whose seconds count


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        contexts, rows: Of the cells.
        rounds: How often everybody takes each cell.
        seconds, least: How long a contestant computes in a turn, and how many forwards at least.
        new_tokens: Length of each text.
        threads: Of everybody.
        seed: Of tokens.
    """

    contexts: Sequence[int]
    rows: Sequence[int]
    rounds: int
    seconds: float
    least: int
    new_tokens: int
    threads: int
    seed: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """A cell in one round.

    Attributes:
        shape, context, rows, round: Which.
        order: The contestants as they took their turns.
        bandwidth: Bytes a second that were read from memory in this round at this context.
        seconds: Of each forward, by contestant.
    """

    shape: str
    context: int
    rows: int
    round: int
    order: tuple[str, ...]
    bandwidth: float
    seconds: Mapping[str, Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Writing:
    """A text of everybody: seconds a token after the first, by contestant."""

    shape: str
    round: int
    order: tuple[str, ...]
    seconds: Mapping[str, float]


@dataclass(kw_only=True, slots=True)
class Notes:
    """What is found beside times.

    Attributes:
        about: What each contestant says of itself, by shape and name.
        distances: Of its logits from those of the weights in fp32, relative, by shape and name.
        left_out: Why a contestant takes no part in a shape, or in any, by `shape: name` or name.
        bandwidths: Bytes a second by how they were read, every measurement.
        waiting: CPU time that each took while others were timed.
    """

    about: dict[str, dict[str, dict]] = field(default_factory=dict)
    distances: dict[str, dict[str, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    bandwidths: dict[str, list[float]] = field(default_factory=dict)
    waiting: Waiting = field(default_factory=Waiting)


class Run:
    """The contestants' processes, and what they are asked."""

    def __init__(self, workers: Mapping[str, Worker], plan: Plan, notes: Notes):
        self.workers, self.plan, self.notes = workers, plan, notes
        self.clocks = {name: worker.cpu_seconds for name, worker in workers.items()}
        self.read_memory = memory_readers(plan.threads)

    def ask(self, name: str, do: str, **arguments: object) -> dict:
        """An answer; what the others do while one is timed is noted. Raises `ContestantFailure`."""
        if do not in TIMED:
            return self.workers[name].ask(do, **arguments)
        with self.notes.waiting.during(name, self.clocks):
            return self.workers[name].ask(do, **arguments)

    def bandwidth(self) -> float:
        """Bytes a second of the way to read memory that is fastest now."""
        found = {way: read() for way, read in self.read_memory.items()}
        for way, speed in found.items():
            self.notes.bandwidths.setdefault(way, []).append(speed)
        return max(found.values())


class ShapeRun:
    """The turns on one shape. Who fails is left out from then on, and the others go on.

    Attributes:
        run, name, models: Who computes what.
        present: Those who take part.
    """

    def __init__(self, run: Run, name: str, models: Models):
        self.run, self.name, self.models = run, name, models
        self.present = [one for one in run.workers if f"{name}: {one}" not in run.notes.left_out]

    def turns(self) -> Iterator[Turn | Writing]:
        plan = self.run.plan
        self.load()
        tokens = random_tokens(self.models.shape, CONTEXT_LENGTH, plan.seed)
        for context in plan.contexts:
            self.asked(self.present, "fill", tokens=tokens[:context])
            for number in range(plan.rounds):
                yield from self.sweep(tokens, context, number)
        yield from self.texts(tokens[:WRITE_CONTEXT])

    def asked(self, order: Sequence[str], do: str, **arguments: object) -> dict[str, dict]:
        """The answers of those in `order` who do not fail, one after another."""
        answers = {}
        for one in list(order):
            with self.leaving_out(one):
                answers[one] = self.run.ask(one, do, **arguments)
        return answers

    @contextmanager
    def leaving_out(self, name: str) -> Iterator[None]:
        """Who fails meanwhile takes no further part."""
        try:
            yield
        except ContestantFailure as failure:
            self.run.notes.left_out[f"{self.name}: {name}"] = str(failure)
            self.present.remove(name)

    def load(self) -> None:
        """Have the model loaded, and its logits compared with those of the weights in fp32."""
        notes, reference = self.run.notes, self.models.reference()
        about, distances = notes.about.setdefault(self.name, {}), notes.distances.setdefault(self.name, {})
        for one in list(self.present):
            path = self.models.of(self.run.workers[one].entrant)
            with self.leaving_out(one):
                about[one] = self.run.ask(one, "load", model=path, threads=self.run.plan.threads)["about"]
                distances[one] = distance(self.run.ask(one, "logits", tokens=reference["tokens"])["logits"], reference)
                require_fit(one, about[one], distances[one])

    def sweep(self, tokens: Sequence[int], context: int, number: int) -> Iterator[Turn]:
        """Every number of rows once; who begins moves on with the round and the cell."""
        plan, bandwidth = self.run.plan, self.run.bandwidth()
        for position, rows in enumerate(plan.rows):
            order = rotated(self.present, number + position) if self.present else []
            wanted = {"tokens": tokens[context : context + rows], "seconds": plan.seconds, "least": plan.least}
            answers = self.asked(order, "measure", **wanted)
            yield Turn(
                shape=self.name,
                context=context,
                rows=rows,
                round=number,
                order=tuple(order),
                bandwidth=bandwidth,
                seconds={one: answers[one]["seconds"] for one in self.present},
            )

    def texts(self, prompt: Sequence[int]) -> Iterator[Writing]:
        """Texts of everybody, after a short one that warms up."""
        new = self.run.plan.new_tokens
        self.asked(self.present, "write", tokens=prompt, new=WARM_UP_TOKENS)
        for number in range(self.run.plan.rounds):
            order = rotated(self.present, number) if self.present else []
            answers = self.asked(order, "write", tokens=prompt, new=new)
            seconds = {one: answers[one]["seconds"] / (new - 1) for one in self.present}
            yield Writing(shape=self.name, round=number, order=tuple(order), seconds=seconds)


def require_fit(name: str, about: Mapping[str, str], distance: float) -> None:
    """Raises `ContestantFailure` for logits of another model, and where `native` runs on another path."""
    if not distance <= FARTHEST:  # NaN is no fit
        raise ContestantFailure(f"its logits are {distance:.2g} off those of the weights in fp32")
    if name in (NATIVE, INT8) and not about["path"].startswith(NATIVE_LINE):
        raise ContestantFailure(f"it runs on the {about['path']}")


def distance(logits: Sequence[float], reference: Mapping[str, Sequence[float]]) -> float:
    """Of `logits` from the reference's, relative to these."""
    wanted = reference["logits"]
    if len(logits) != len(wanted):
        raise ContestantFailure(f"it gives {len(logits)} logits instead of {len(wanted)}")
    apart = sum((own - other) ** 2 for own, other in zip(logits, wanted, strict=True))
    return sqrt(apart / sum(other**2 for other in wanted))


def memory_readers(threads: int) -> dict[str, Callable[[], float]]:
    """Ways to read memory with so many threads, each of which tells how many bytes a second it read."""
    torch.set_num_threads(threads)
    numbers = torch.ones(BUFFER_BYTES // 4)
    ways = {"torch": lambda: sum_speed(numbers)}
    if installed():
        pool = extension().Threads(threads)
        ways["native"] = lambda: extension().read_bandwidth(pool, BUFFER_BYTES)
    return ways


def sum_speed(numbers: torch.Tensor) -> float:
    """Bytes a second of a sum over `numbers`, the median of some."""
    times = []
    for _ in range(BUFFER_READS):
        start = perf_counter()
        numbers.sum()
        times.append(perf_counter() - start)
    return numbers.nbytes / median(times)
