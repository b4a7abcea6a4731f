"""What the turns of the benchmark of the policy say: ratios by cell, verdicts, and the machine's noise."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import exp, log
from statistics import fmean

from cell_verdict import cell_verdict
from policy_contestants import AGAIN, AUTO, Cell, Sample, Turn

from foredraft.evaluation.figures import Spread, spread
from foredraft.evaluation.report import plain_json
from foredraft.evaluation.turns import PLAIN

NEAR_BEST = 0.95  # of the best fixed setting, in every cell
ABOVE_PLAIN = 0.97  # of plain decoding, in every cell


def findings(turns: Sequence[Turn]) -> dict:
    """Everything the turns say, and the turns, as JSON holds it."""
    names = list(turns[0].samples)
    return plain_json(
        {
            "verdicts": judge(turns),
            "noise": noise(turns),
            "choices": choices([turn.samples for turn in turns]),
            "mix": {name: mix_record(turns, name) for name in names},
            "unlike_plain": {name: sum(turn.samples[name].unlike_plain for turn in turns) for name in names},
            "requests": sum(turn.requests for turn in turns),
            "cells": [cell_record(cell, its) for cell, its in by_cell(turns).items()],
            "turns": [turn.record() for turn in turns],
        }
    )


def by_cell(turns: Sequence[Turn]) -> dict[Cell, list[Mapping[str, Sample]]]:
    """Samples of each cell, a mapping a round."""
    cells: dict[Cell, list[Mapping[str, Sample]]] = {}
    for turn in turns:
        cells.setdefault(turn.cell, []).append(turn.samples)
    return cells


def by_round(turns: Sequence[Turn]) -> list[dict[str, Sample]]:
    """All cells of a round as one sample: tokens and seconds added up."""
    rounds: dict[int, list[Turn]] = {}
    for turn in turns:
        rounds.setdefault(turn.round, []).append(turn)
    return [{name: added([turn.samples[name] for turn in its]) for name in its[0].samples} for its in rounds.values()]


def added(samples: list[Sample]) -> Sample:
    parts = {part: sum(getattr(sample, part) for sample in samples) for part in ("tokens", "seconds", "rounds")}
    return Sample(**parts)


def ratio(samples: Sequence[Mapping[str, Sample]], name: str, reference: str = PLAIN) -> Spread:
    """Tokens a second over the reference's, round by round."""
    return spread(own[name].speed / own[reference].speed for own in samples)


def best_fixed(samples: Sequence[Mapping[str, Sample]]) -> str:
    """The fixed setting with the highest median ratio to plain decoding, which is one of them."""
    return max((name for name in samples[0] if name not in (AUTO, AGAIN)), key=lambda name: ratio(samples, name).median)


def cell_record(cell: Cell, samples: Sequence[Mapping[str, Sample]]) -> dict:
    return asdict(cell) | {
        "best_fixed": best_fixed(samples),
        "choices": choices(samples),
        "contestants": {
            name: {
                "ratio": asdict(ratio(samples, name)),
                "tokens_per_second": asdict(spread(own[name].speed for own in samples)),
                "tau": sum(own[name].tokens for own in samples) / sum(own[name].rounds for own in samples),
            }
            for name in samples[0]
        },
    }


def choices(samples: Sequence[Mapping[str, Sample]]) -> dict[str, float]:
    """Shares of the rounds of `auto` by the way to draft that it chose, the largest first; empty without it."""
    counts: Counter[str] = Counter()
    for own in samples:
        counts.update(own[AUTO].choices if AUTO in own else {})
    return {way: count / counts.total() for way, count in counts.most_common()}


def mix_record(turns: Sequence[Turn], name: str) -> dict:
    """A contestant over all cells: tokens a second of everything it wrote, and the geometric mean of its cells."""
    medians = [ratio(samples, name).median for samples in by_cell(turns).values()]
    return {"ratio": asdict(ratio(by_round(turns), name)), "cell_mean": exp(fmean(map(log, medians)))}


def judge(turns: Sequence[Turn]) -> dict | None:
    """The three verdicts; none where `auto` took no part."""
    if AUTO not in turns[0].samples:
        return None
    return {
        "near_best": over_cells(turns, NEAR_BEST, best_fixed),
        "above_plain": over_cells(turns, ABOVE_PLAIN, lambda _: PLAIN),
        "mix": over_mix(turns),
    }


def noise(turns: Sequence[Turn]) -> dict | None:
    """Plain decoding beside itself, over all cells: the least and the most, and how many differ by no more than a
    verdict allows; none where it took part but once."""
    if AGAIN not in turns[0].samples:
        return None
    ratios = [ratio(samples, AGAIN).median for samples in by_cell(turns).values()]
    near = sum(ABOVE_PLAIN <= found <= 1 / ABOVE_PLAIN for found in ratios)
    return {"limit": ABOVE_PLAIN, "cells": len(ratios), "near": near, "least": min(ratios), "most": max(ratios)}


def over_cells(
    turns: Sequence[Turn], limit: float, reference_of: Callable[[Sequence[Mapping[str, Sample]]], str]
) -> dict:
    """In how many cells the median ratio of `auto` to the reference reaches `limit`, and the worst of them."""
    rows = []
    for cell, samples in by_cell(turns).items():
        reference = reference_of(samples)
        rows.append({"cell": str(cell), "against": reference} | asdict(ratio(samples, AUTO, reference)))
    return cell_verdict(rows, "median", limit, at_least=True)


def over_mix(turns: Sequence[Turn]) -> dict:
    """Whether `auto` writes all cells together faster than the single best fixed setting does."""
    samples = by_round(turns)
    best = best_fixed(samples)
    found = ratio(samples, AUTO, best)
    return {"against": best} | asdict(found) | {"holds": found.median > 1}
