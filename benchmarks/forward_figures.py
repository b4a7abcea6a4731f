"""What the turns of the benchmark of the forward say: times, bytes a second, ratios, and the three verdicts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import median

from cell_verdict import cell_verdict
from forward_contestants import INT8, NATIVE, OPENVINO
from forward_shapes import INT8_BYTES, Shape
from forward_turns import Turn, Writing

from foredraft.evaluation.figures import spread
from foredraft.evaluation.report import plain_json

BANDWIDTH_SHARE = 0.75  # of what memory gives, at least: weights alone, keys and values come on top
SHARE_ROWS = 16  # at most
SHARE_SHAPES = ("110m", "350m")
MANY_ROWS, MANY_TO_ONE = 32, 1.25
PLAIN_TO_PEER = 1.1
PLAIN_SHAPES = ("31m", "110m")


def findings(turns: Sequence[Turn], writings: Sequence[Writing], shapes: Mapping[str, Shape]) -> dict:
    """Everything the turns say, and the turns, as JSON holds it."""
    cells = [cell_record(its, turns, shapes[its[0].shape]) for its in by_cell(turns).values()]
    texts = [text_record(its) for its in by_shape(writings).values()]
    return plain_json(
        {
            "verdicts": judge(cells, texts),
            "cells": cells,
            "texts": texts,
            "turns": [turn_record(turn) for turn in turns],
            "writings": [asdict(writing) for writing in writings],
        }
    )


def by_cell(turns: Iterable[Turn]) -> dict[tuple[str, int, int], list[Turn]]:
    cells: dict[tuple[str, int, int], list[Turn]] = {}
    for turn in turns:
        cells.setdefault((turn.shape, turn.context, turn.rows), []).append(turn)
    return cells


def by_shape(writings: Iterable[Writing]) -> dict[str, list[Writing]]:
    shapes: dict[str, list[Writing]] = {}
    for writing in writings:
        shapes.setdefault(writing.shape, []).append(writing)
    return shapes


def cell_record(its: Sequence[Turn], turns: Sequence[Turn], shape: Shape) -> dict:
    """A cell, all its rounds together; its bandwidth is that of its own rounds."""
    first, bandwidth = its[0], median(turn.bandwidth for turn in its)
    ones = [turn for turn in turns if (turn.shape, turn.context, turn.rows) == (first.shape, first.context, 1)]
    return {
        "shape": first.shape,
        "context": first.context,
        "rows": first.rows,
        "bandwidth": bandwidth,
        "weight_bytes": shape.weight_bytes(),
        "cache_bytes": shape.cache_bytes * first.context,
        "contestants": {name: figures(name, its, ones, shape, bandwidth) for name in names_of(its)},
    }


def figures(name: str, its: Sequence[Turn], ones: Sequence[Turn], shape: Shape, bandwidth: float) -> dict:
    """One contestant in a cell; ratios are formed round by round, over the rounds in which it took part."""
    its = [turn for turn in its if name in turn.seconds]
    times = spread(seconds for turn in its for seconds in turn.seconds[name])
    weights = shape.weight_bytes(INT8_BYTES) if name == INT8 else shape.weight_bytes()
    speed = weights / times.median
    both = speed + shape.cache_bytes * its[0].context / times.median
    return {
        "seconds": asdict(times),
        "weights_per_second": speed,
        "bandwidth_share": speed / bandwidth,
        "bandwidth_share_with_cache": both / bandwidth,
        "to_one_row": ratios(its, ones, lambda turn: middle(turn, name), lambda turn: middle(turn, name)),
        "native_speedup": ratios(its, its, lambda turn: middle(turn, name), lambda turn: middle(turn, NATIVE)),
    }


def names_of(its: Iterable[Turn | Writing]) -> list[str]:
    """Who took part in any."""
    return list(dict.fromkeys(name for one in its for name in one.seconds))


def middle(turn: Turn, name: str) -> float | None:
    """Median seconds of a contestant in a turn; none where it took no part."""
    return median(turn.seconds[name]) if name in turn.seconds else None


def ratios(
    its: Sequence[Turn | Writing],
    others: Sequence[Turn | Writing],
    own: Callable[[Turn | Writing], float | None],
    reference: Callable[[Turn | Writing], float | None],
) -> dict | None:
    """`own` of each turn over `reference` of the other turn of the same round; none where there is no such pair."""
    known = {turn.round: reference(turn) for turn in others}
    values = [own(turn) / known[turn.round] for turn in its if known.get(turn.round) and own(turn)]
    return asdict(spread(values)) if values else None


def text_record(its: Sequence[Writing]) -> dict:
    """Texts on a shape, all rounds together."""

    def seconds_of(name: str) -> Callable[[Writing], float | None]:
        return lambda writing: writing.seconds.get(name)

    return {
        "shape": its[0].shape,
        "contestants": {
            name: {
                "seconds_a_token": asdict(spread(filter(None, map(seconds_of(name), its)))),
                "native_speedup": ratios(its, its, seconds_of(name), seconds_of(NATIVE)),
            }
            for name in names_of(its)
        },
    }


def turn_record(turn: Turn) -> dict:
    """A turn with the spread of its forwards for each of them."""
    seconds = {name: asdict(spread(its)) | {"forwards": len(its)} for name, its in turn.seconds.items()}
    return asdict(turn) | {"seconds": seconds}


def judge(cells: Sequence[Mapping], texts: Sequence[Mapping]) -> dict | None:
    """The three verdicts, each none where nothing it needs was measured; none at all without the native path."""
    ours = [cell for cell in cells if NATIVE in cell["contestants"]]
    if not ours:
        return None
    shared = [
        row_of(cell, cell["contestants"][NATIVE]["bandwidth_share"])
        for cell in ours
        if cell["rows"] <= SHARE_ROWS and cell["shape"] in SHARE_SHAPES
    ]
    many = [(cell, cell["contestants"][NATIVE]["to_one_row"]) for cell in ours if cell["rows"] == MANY_ROWS]
    plain = [
        row_of(text, text["contestants"][OPENVINO]["native_speedup"]["median"])
        for text in texts
        if {NATIVE, OPENVINO} <= set(text["contestants"]) and text["shape"] in PLAIN_SHAPES
    ]
    return {
        "bandwidth": verdict(shared, BANDWIDTH_SHARE, at_least=True),
        "many_rows": verdict([row_of(cell, ratio["median"]) for cell, ratio in many if ratio], MANY_TO_ONE),
        "plain": verdict(plain, PLAIN_TO_PEER, at_least=True),
    }


def row_of(record: Mapping, value: float) -> dict:
    place = record["shape"]
    if "rows" in record:
        place += f", context {record['context']}, {record['rows']} rows"
    return {"cell": place, "value": value}


def verdict(rows: list[dict], limit: float, *, at_least: bool = False) -> dict | None:
    """In how many cells the value keeps to `limit`, the worst first; none where there is none."""
    return cell_verdict(rows, "value", limit, at_least=at_least) if rows else None
