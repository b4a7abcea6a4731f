"""From what clients saw to figures and verdicts: speed over `off` round by round, latencies over all requests."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles

from serve_client import Load, Reply
from serve_contestants import AUTO, OFF, PEERS

from foredraft.evaluation.figures import Spread, spread
from foredraft.evaluation.report import plain_json

ALONE = 2.0  # `auto` to `off` for one user
NEVER_UNDER = 0.97  # `auto` to `off` at every concurrency
PEAK = 2.0  # peak of `auto` to the peak of transformers
DIGITS = 5  # of seconds in the record


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One contestant at one concurrency.

    Attributes:
        load: What its clients saw.
        server_seconds, idle_seconds: CPU time meanwhile of its server, and of all other servers.
        unlike_off: Replies whose text is not that of `off`.
    """

    load: Load
    server_seconds: float = 0.0
    idle_seconds: float = 0.0
    unlike_off: int = 0

    @property
    def served(self) -> list[Reply]:
        return [reply for reply in self.load.replies if reply.error is None]

    @property
    def errors(self) -> list[str]:
        return [reply.error for reply in self.load.replies if reply.error is not None]

    @property
    def tokens(self) -> int:
        return sum(reply.tokens for reply in self.load.replies)

    @property
    def speed(self) -> float:
        """Tokens a second of all clients together."""
        return self.tokens / self.load.seconds

    def record(self) -> dict:
        """Everything but the texts; times of a request are in the order of the requests."""
        replies = self.served
        return {
            "seconds": round(self.load.seconds, DIGITS),
            "tokens_per_second": self.speed,
            "client_cpu_seconds": round(self.load.client_seconds, DIGITS),
            "server_cpu_seconds": self.server_seconds,
            "idle_servers_cpu_seconds": self.idle_seconds,
            "unlike_off": self.unlike_off,
            "errors": self.errors,
            "tokens": [reply.tokens for reply in replies],
            "prompt_tokens": [reply.prompt_tokens for reply in replies],
            "chunks": [len(reply.arrivals) for reply in replies],
            "first_token": [round(reply.first_seconds, DIGITS) for reply in replies],
            "whole": [round(reply.whole_seconds, DIGITS) for reply in replies],
            "between_chunks": percentiles(gap for reply in replies for gap in reply.gaps),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One concurrency in one round: a sample of every contestant, all from the same prompts and seeds.

    Attributes:
        concurrency, round: Which.
        order: The contestants as they took their turns.
        samples: By contestant.
    """

    concurrency: int
    round: int
    order: tuple[str, ...]
    samples: Mapping[str, Sample]

    def record(self) -> dict:
        own = {"concurrency": self.concurrency, "round": self.round, "order": self.order}
        return own | {"samples": {name: sample.record() for name, sample in self.samples.items()}}


def percentiles(values: Iterable[float]) -> dict[str, float] | None:
    """Median and 99th percentile, none of none."""
    values = sorted(values)
    if not values:
        return None
    cuts = quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    return {"p50": cuts[49], "p99": cuts[98]}


def findings(turns: Sequence[Turn]) -> dict:
    """Everything the turns say, and the turns, as JSON holds it."""
    return plain_json(
        {
            "verdicts": judge(turns),
            "peaks": peaks(turns),
            "unlike_off": summed(turns, lambda sample: sample.unlike_off),
            "requests": summed(turns, lambda sample: len(sample.load.replies)),
            "errors": errors(turns),
            "cells": [cell_record(concurrency, its) for concurrency, its in by_concurrency(turns).items()],
            "turns": [turn.record() for turn in turns],
        }
    )


def summed(turns: Sequence[Turn], count: Callable[[Sample], int]) -> dict[str, int]:
    return {name: sum(count(turn.samples[name]) for turn in turns) for name in turns[0].samples}


def errors(turns: Sequence[Turn]) -> dict[str, list[str]]:
    """What went wrong, by contestant; those without an error are not in it."""
    told = {name: [error for turn in turns for error in turn.samples[name].errors] for name in turns[0].samples}
    return {name: its for name, its in told.items() if its}


def by_concurrency(turns: Sequence[Turn]) -> dict[int, list[Mapping[str, Sample]]]:
    """Samples by concurrency in ascending order, a mapping a round."""
    cells: dict[int, list[Mapping[str, Sample]]] = {}
    for turn in sorted(turns, key=lambda turn: turn.concurrency):
        cells.setdefault(turn.concurrency, []).append(turn.samples)
    return cells


def cell_record(concurrency: int, samples: Sequence[Mapping[str, Sample]]) -> dict:
    names = list(samples[0])
    return {
        "concurrency": concurrency,
        "contestants": {name: figures(name, samples) for name in names},
    }


def figures(name: str, samples: Sequence[Mapping[str, Sample]]) -> dict:
    """What is said of one contestant at one concurrency."""
    own = [its[name] for its in samples]
    seconds = sum(sample.load.seconds for sample in own)
    found = {
        "ratio": asdict(ratio(samples, name)),
        "tokens_per_second": asdict(spread(sample.speed for sample in own)),
        "requests": sum(len(sample.load.replies) for sample in own),
        "tokens": sum(sample.tokens for sample in own),
        "tokens_a_chunk": per_chunk(own),
        "client_cpu_share": sum(sample.load.client_seconds for sample in own) / seconds,
        "server_cpu_share": sum(sample.server_seconds for sample in own) / seconds,
        "idle_servers_cpu_share": sum(sample.idle_seconds for sample in own) / seconds,
    }
    return found | latencies([reply for sample in own for reply in sample.served])


def latencies(replies: Sequence[Reply]) -> dict[str, dict[str, float] | None]:
    """Seconds over all requests of all rounds: to the first token, a token after it, between chunks, to the end."""
    between = [reply.between_seconds for reply in replies]
    return {
        "first_token": percentiles(reply.first_seconds for reply in replies),
        "between_tokens": percentiles(seconds for seconds in between if seconds is not None),
        "between_chunks": percentiles(gap for reply in replies for gap in reply.gaps),
        "whole": percentiles(reply.whole_seconds for reply in replies),
    }


def per_chunk(samples: Sequence[Sample]) -> float | None:
    """Tokens that come at once; none where nothing came."""
    chunks = sum(len(reply.arrivals) for sample in samples for reply in sample.served)
    return sum(sample.tokens for sample in samples) / chunks if chunks else None


def ratio(samples: Sequence[Mapping[str, Sample]], name: str, reference: str = OFF) -> Spread:
    """Tokens a second over the reference's, round by round."""
    return spread(over(own[name].speed, own[reference].speed) for own in samples)


def over(own: float, other: float) -> float:
    """0 where the other is 0: all of its requests failed, and nothing was gained over it."""
    return own / other if other else 0.0


def by_round(turns: Sequence[Turn]) -> list[list[Turn]]:
    rounds: dict[int, list[Turn]] = {}
    for turn in turns:
        rounds.setdefault(turn.round, []).append(turn)
    return list(rounds.values())


def peak(turns: Sequence[Turn], name: str) -> float:
    """The highest tokens a second of a contestant at any concurrency."""
    return max(turn.samples[name].speed for turn in turns)


def peaks(turns: Sequence[Turn]) -> dict[str, dict[str, float]]:
    """Peak tokens a second of everybody, round by round."""
    return {name: asdict(spread(peak(its, name) for its in by_round(turns))) for name in turns[0].samples}


def judge(turns: Sequence[Turn]) -> dict | None:
    """The three verdicts; none where `auto` took no part, and none of one that nothing was measured for."""
    names = list(turns[0].samples)
    if AUTO not in names:
        return None
    peers = [name for name in names if name in PEERS]
    return {"alone": over_off_alone(turns), "never_under": over_off(turns), "peak": over_peers(turns, peers)}


def over_off_alone(turns: Sequence[Turn]) -> dict | None:
    samples = by_concurrency(turns).get(1)
    if samples is None:
        return None
    found = ratio(samples, AUTO)
    return {"limit": ALONE, "holds": found.median >= ALONE} | asdict(found)


def over_off(turns: Sequence[Turn]) -> dict:
    """The median ratio of `auto` to `off` at every concurrency, the lowest first."""
    cells = by_concurrency(turns).items()
    rows = [{"concurrency": concurrency} | asdict(ratio(samples, AUTO)) for concurrency, samples in cells]
    rows.sort(key=lambda row: row["median"])
    return {"limit": NEVER_UNDER, "holds": rows[0]["median"] >= NEVER_UNDER, "rows": rows}


def over_peers(turns: Sequence[Turn], peers: Sequence[str]) -> dict | None:
    """The peak of `auto` to the highest peak of any peer, round by round."""
    if not peers:
        return None
    pairs = [(peak(its, AUTO), max(peak(its, name) for name in peers)) for its in by_round(turns)]
    found = spread(over(own, other) for own, other in pairs)
    return {"limit": PEAK, "against": list(peers), "holds": found.median >= PEAK} | asdict(found)
