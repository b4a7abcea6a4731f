"""Who takes part in the benchmark of the policy, and how each writes a cell."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from drafter_contestants import DRAFT_MODEL, DRAFTERS

from foredraft import ConfigError, Engine, RequestOutput, SamplingParams, SpeculationConfig, UserError
from foredraft.core.errors import SlotsError, require
from foredraft.core.outcome import total
from foredraft.engine.scheduler import slots_needed
from foredraft.evaluation.turns import PLAIN, rotated

AUTO = "auto"
AGAIN = "plain again"  # what differs between it and plain decoding is the machine
FIXED = ("ngram", "suffix", "medusa", "medusa tree", "dflash", "dflash tree", "mtp", "draft model", "eagle3")
# Rounds bring the same prompts again, so nobody drafts from past outputs.
SETTINGS: dict[str, dict] = (
    {PLAIN: {"method": "none"}, AGAIN: {"method": "none"}}
    | {name: DRAFTERS[name] for name in FIXED}
    | {"recycling tree": {"method": "recycling", "tree_size": 15}}
    | {AUTO: {"method": "auto", "suffix_decoding_max_cached_requests": 0}}
)


def settings_of(
    names: Sequence[str], changes: Mapping[str, Mapping[str, object]], draft_model: str
) -> dict[str, dict[str, object]]:
    """The settings of everybody named, or of all, with `changes` made; plain decoding always comes first.

    Raises `ConfigError` for an unknown name and for other settings of plain decoding, the reference.
    """
    require(PLAIN not in changes, f"--settings names {PLAIN!r}; plain decoding is the reference and stays as it is")
    known = {name: SETTINGS.get(name, {}) | dict(changes.get(name, {})) for name in {**SETTINGS, **changes}}
    unknown = [name for name in names if name not in known]
    require(not unknown, f"contestant {', '.join(map(repr, unknown))} is not known; known: {', '.join(known)}")
    chosen = dict.fromkeys([PLAIN, *(names or known)])
    return {name: filled(known[name], draft_model) for name in chosen}


def filled(setting: Mapping[str, object], draft_model: str) -> dict[str, object]:
    return {key: draft_model if value == DRAFT_MODEL else value for key, value in setting.items()}


def configs_of(settings: Mapping[str, Mapping[str, object]]) -> dict[str, SpeculationConfig]:
    """Raises `ConfigError` naming the contestant."""
    configs = {}
    for name, setting in settings.items():
        try:
            configs[name] = SpeculationConfig.from_dict(dict(setting))
        except ConfigError as error:
            raise ConfigError(f"contestant {name!r}: {error}") from None
        drafts = setting.get("method", "none") != "none"
        require(drafts or name in (PLAIN, AGAIN), f"contestant {name!r} has no method; give it one in --settings")
    return configs


def make_engines(
    configs: Mapping[str, SpeculationConfig], engine_of: Callable[[SpeculationConfig], Engine]
) -> tuple[dict[str, Engine], dict[str, str]]:
    """An engine for everybody who can have one; of the others, why not.

    Engines are kept for the whole run, so a contestant that learns goes on learning, as in a server.
    """
    engines, left_out = {PLAIN: engine_of(configs[PLAIN])}, {}
    for name in (name for name in configs if name != PLAIN):
        try:
            engines[name] = engine_of(configs[name])
        except UserError as error:
            left_out[name] = str(error)
    return engines, left_out


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Requests of one kind: what they are about, how many are in flight, how they are sampled."""

    workload: str
    concurrency: int
    temperature: float

    def __str__(self) -> str:
        return f"{self.workload}, {self.concurrency} at once, temperature {self.temperature:g}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One contestant's writing of a cell.

    Attributes:
        tokens: Written by all of its requests.
        seconds: From the first request's start to the last one's end.
        rounds: Target forwards that decided tokens, a request.
        drafted, accepted: Draft tokens.
        draft_seconds, verify_seconds: Time of drafting and of the target's forwards.
        choices: Rounds by the way to draft that a policy chose; empty where none did.
        unlike_plain: Requests whose text is not plain decoding's.
    """

    tokens: int
    seconds: float
    rounds: int
    drafted: int = 0
    accepted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    choices: Mapping[str, int] = field(default_factory=dict)
    unlike_plain: int = 0

    @property
    def speed(self) -> float:
        """Tokens a second of all requests together."""
        return self.tokens / self.seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One cell in one round: a sample of every contestant, all from the same prompts and seeds.

    Attributes:
        cell, round: Which.
        seed: Of its first request; request i has seed + i.
        order: The contestants as they took their first turns.
        requests: How many each wrote.
        samples: By contestant.
    """

    cell: Cell
    round: int
    seed: int
    order: tuple[str, ...]
    requests: int
    samples: Mapping[str, Sample]

    def record(self) -> dict:
        own = asdict(self)
        return own.pop("cell") | own


def requests_in(cell: Cell, least: int, queue: int = 1) -> int:
    """Requests of a cell: whole turns, `queue` for each one in flight, until there are enough."""
    turn = queue * cell.concurrency
    return -(-least // turn) * turn


def requests_of(
    prompts: Sequence[list[int]], count: int, sampling: SamplingParams, first: int = 0
) -> tuple[list[list[int]], list[SamplingParams]]:
    """`count` prompts from number `first` on, and how each is sampled; one that comes again does so with another
    seed."""
    places = range(first, first + count)
    seeds = [(sampling.seed + index) % 2**63 for index in range(count)]
    return [prompts[place % len(prompts)] for place in places], [replace(sampling, seed=seed) for seed in seeds]


def write_cell(
    engine: Engine, concurrency: int, prompts: list[list[int]], sampling: list[SamplingParams]
) -> tuple[float, list[RequestOutput]]:
    """Seconds by the engine's clock and outputs of requests, `concurrency` of them in flight as long as some wait."""
    engine.scheduler.max_batch = concurrency
    start = engine.clock()
    outputs = engine.generate(prompts, sampling)
    return engine.clock() - start, outputs


def take_turn(
    engines: Mapping[str, Engine],
    cell: Cell,
    prompts: Sequence[list[int]],
    sampling: SamplingParams,
    *,
    requests: int,
    queue: int,
    first: int,
    number: int,
    position: int,
) -> Turn:
    """Everybody writes the cell once, in turns of `queue` requests for each one in flight: what disturbs the machine
    for a second then meets all alike. Who begins moves on with the round's number, the position in it, and every
    turn."""
    texts, params = requests_of(prompts, requests, replace(sampling, temperature=cell.temperature), first)
    size = queue * cell.concurrency
    orders = [rotated(list(engines), number + position + turn) for turn in range(requests // size)]
    seconds, outputs = Counter[str](), {name: [] for name in engines}
    for turn, order in enumerate(orders):
        part = slice(turn * size, (turn + 1) * size)
        for name in order:
            taken, written = write_cell(engines[name], cell.concurrency, texts[part], params[part])
            seconds[name] += taken
            outputs[name] += written
    plain = [output.token_ids for output in outputs[PLAIN]]
    samples = {name: sample_of(seconds[name], outputs[name], plain) for name in engines}
    return Turn(
        cell=cell, round=number, seed=params[0].seed, order=tuple(orders[0]), requests=requests, samples=samples
    )


def sample_of(seconds: float, outputs: Sequence[RequestOutput], plain: Sequence[list[int]]) -> Sample:
    counts = total(output.statistics for output in outputs)
    return Sample(
        tokens=sum(len(output.token_ids) for output in outputs),
        seconds=seconds,
        rounds=counts.rounds,
        drafted=counts.drafted,
        accepted=counts.accepted,
        draft_seconds=counts.draft_seconds,
        verify_seconds=counts.verify_seconds,
        choices=counts.choices,
        unlike_plain=sum(output.token_ids != text for output, text in zip(outputs, plain, strict=True)),
    )


def sweeps(workloads: Sequence[str], concurrencies: Sequence[int], temperatures: Sequence[float]) -> list[list[Cell]]:
    """Cells of one round, a list for each concurrency and temperature: the text changes from cell to cell."""
    return [
        [Cell(workload=workload, concurrency=concurrency, temperature=temperature) for workload in workloads]
        for concurrency in concurrencies
        for temperature in temperatures
    ]


def take_turns(
    engines: Mapping[str, Engine],
    prompts: Mapping[str, Sequence[list[int]]],
    cells: Sequence[Sequence[Cell]],
    sampling: SamplingParams,
    *,
    rounds: int,
    least_requests: int,
    queue: int = 1,
) -> Iterator[Turn]:
    """Every cell once a round. No two requests of a run share a seed, whatever their cell and round, nor a prompt
    until all of their workload have been written."""
    in_order = [cell for sweep in cells for cell in sweep]
    seed, written = sampling.seed, Counter[str]()
    for number in range(rounds):
        for position, cell in enumerate(in_order):
            requests = requests_in(cell, least_requests, queue)
            own = replace(sampling, seed=seed % 2**63)
            at = {"queue": queue, "first": written[cell.workload], "number": number, "position": position}
            yield take_turn(engines, cell, prompts[cell.workload], own, requests=requests, **at)
            seed += requests
            written[cell.workload] += requests


def require_room(
    engines: Mapping[str, Engine], prompts: Mapping[str, Sequence[list[int]]], sampling: SamplingParams, most: int
) -> None:
    """Raise `SlotsError` where a cache cannot hold the `most` longest requests at once.

    The scheduler would let fewer in, and a cell would not measure what it says.
    """
    longest = sorted((prompt for its in prompts.values() for prompt in its), key=len, reverse=True)
    for name, engine in engines.items():
        requests = engine.submit(requests_of(longest, most, sampling)[0], sampling, None)
        needed, size = sum(map(slots_needed, requests)), engine.scheduler.pool.size
        engine.cancel(requests)
        require(needed <= size, f"--cache-tokens is {size}; {name} at {most} at once may need {needed}", SlotsError)
