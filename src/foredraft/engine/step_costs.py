"""What steps cost on this machine: a table of measured seconds, read between and beyond its entries."""

from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from math import isfinite
from typing import Any

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.cost_curves import Curve, ForwardCurves, ForwardLine

PLAIN = "plain"
SHORTEST_LINE = 64  # rows
KNOTS = (4, 16)  # requests that the cost of a call is guessed for where it was measured for one
SPOKEN = {"none": PLAIN}
NETWORK = {"draft_weights": "weights"}
OWN_KEYS = {  # what beside model, length and shape decides the cost of a method's drafts, and what labels call it
    "ngram": {"prompt_lookup_max": "max", "prompt_lookup_min": "min"},
    "suffix": {
        "suffix_decoding_max_tree_depth": "depth",
        "suffix_decoding_max_spec_factor": "factor",
        "suffix_decoding_min_token_prob": "min prob",
    },
    "lookahead": {"lookahead_window": "window", "lookahead_ngram": "ngram", "lookahead_guesses": "guesses"},
    "recycling": {"recycling_candidates": "candidates"},
    "self_speculation": {"self_exit_layer": "exit", "self_skip": "skip"},
    "draft_model": {"vocabulary_matching": "matching", **NETWORK},
    **dict.fromkeys(("eagle", "eagle3", "mtp", "medusa", "dflash"), NETWORK),
}
DEFAULTS = SpeculationConfig()


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardCost:
    """One target forward: `rows` packed rows of `requests` requests with `context` committed positions each."""

    rows: int
    requests: int
    context: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftCost:
    """One call of a drafter for `requests` requests."""

    requests: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Seconds of target forwards and of drafter calls.

    Attributes:
        forwards: Measured forwards, at least one.
        drafts: Measured drafter calls by `option_label`.
    """

    forwards: tuple[ForwardCost, ...]
    drafts: dict[str, tuple[DraftCost, ...]]

    def forward_seconds(self, rows: int, requests: int, context: float) -> float:
        """Seconds of a forward of `rows` packed rows, all requests together, with a mean `context` a request.

        Never less for more rows or more context: what was measured is smoothed to be so.
        """
        seconds, parts = self.cells.get((rows, requests)) or self.cell(rows, requests)
        for slope, start in parts:
            if context > start:
                seconds += slope * (context - start)
        return seconds

    def draft_seconds(self, label: str, requests: int) -> float | None:
        """Seconds of one call of the drafter that serves `label`; none where it was never measured."""
        if label == PLAIN:
            return 0.0
        known = self.calls.get((label, requests))
        if known is None and label in self.draft_curves:
            known = self.calls[label, requests] = self.draft_curves[label].at(requests)
        return known

    def forward_line(self, first: int, last: int, requests: int, context: float) -> list[float]:
        """`forward_seconds` of `first` to `last` rows, [last - first + 1]."""
        line = self.lines.get(requests)
        if line is None or len(line.base) <= last:
            line = self.lines[requests] = self.forward_curves.line(max(2 * last, SHORTEST_LINE), requests)
        seconds = line.base[first : last + 1]
        for slopes, start in line.parts:
            if context > start:
                more = slopes[first : last + 1]
                seconds = [base + slope * (context - start) for base, slope in zip(seconds, more, strict=True)]
        return seconds

    def cell(self, rows: int, requests: int) -> tuple[float, tuple[tuple[float, float], ...]]:
        """What `forward_seconds` needs of one size, computed once: it is asked in every step."""
        self.cells[rows, requests] = self.forward_curves.cell(rows, requests)
        return self.cells[rows, requests]

    @cached_property
    def cells(self) -> dict:
        return {}

    @cached_property
    def calls(self) -> dict[tuple[str, int], float]:
        """By label and requests, as far as was asked."""
        return {}

    @cached_property
    def lines(self) -> dict[int, ForwardLine]:
        """By requests, as far as was asked."""
        return {}

    @cached_property
    def forward_curves(self) -> ForwardCurves:
        points: dict[int, dict[float, dict[float, float]]] = {}
        for cost in self.forwards:
            points.setdefault(cost.requests, {}).setdefault(cost.context, {})[cost.rows] = cost.seconds
        return ForwardCurves(points)

    @cached_property
    def draft_curves(self) -> dict[str, Curve]:
        measured = {label: {cost.requests: cost.seconds for cost in costs} for label, costs in self.drafts.items()}
        for points in measured.values():
            if points.keys() == {1}:  # more requests are guessed to take as much more as in a forward of the target
                points |= {requests: points[1] * self.growth(requests) for requests in KNOTS}
        return {label: Curve.through(points) for label, points in measured.items() if points}

    def growth(self, requests: int) -> float:
        """How much longer a forward of a row for each of `requests` requests takes than one of a single row."""
        alone = self.forward_seconds(1, 1, 0)
        return self.forward_seconds(requests, requests, 0) / alone if alone else 1.0

    def record(self) -> dict[str, Any]:
        """The table as plain values, for JSON."""
        return {
            "forwards": [asdict(cost) for cost in self.forwards],
            "drafts": {label: [asdict(cost) for cost in costs] for label, costs in self.drafts.items()},
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "StepCosts":
        """What `record` made. Raises `ValueError` for anything else."""
        try:
            forwards = tuple(ForwardCost(**cost) for cost in record["forwards"])
            drafts = {label: tuple(DraftCost(**cost) for cost in costs) for label, costs in record["drafts"].items()}
            sizes = [value for cost in forwards for value in (cost.rows, cost.requests, cost.context)]
            times = [cost.seconds for costs in (forwards, *drafts.values()) for cost in costs]
            sizes += [cost.requests for costs in drafts.values() for cost in costs]
            whole = all(type(size) is int and size >= 0 for size in sizes)
            sound = whole and all(isfinite(time) and time >= 0 for time in times)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a record of step costs: {error}") from None
        if not forwards or not sound:
            raise ValueError("not a record of step costs: no forwards, or a number no measurement can give")
        return cls(forwards=forwards, drafts=drafts)


def option_label(config: SpeculationConfig) -> str:
    """A readable name of one way to draft, equal for configs whose drafts are made alike and of the same size.

    Leaves out what does not decide the cost of a draft, such as the acceptance rule or a request's prediction.
    """
    name = SPOKEN.get(config.method, config.method)
    if name == PLAIN:
        return name
    parts = [name, config.model, config.drafters, str(config.depth), tree_label(config), *own_labels(config)]
    return " ".join(part for part in parts if part)


def own_labels(config: SpeculationConfig) -> list[str]:
    """Settings of the method, or of those it combines, that are not the default."""
    methods = {config.method, *(member.partition(":")[0].strip() for member in config.drafters.split(","))}
    keys = [(key, said) for method in sorted(methods & OWN_KEYS.keys()) for key, said in OWN_KEYS[method].items()]
    values = [(said, getattr(config, key)) for key, said in keys if getattr(config, key) != getattr(DEFAULTS, key)]
    return [f"{said} {value:g}" if isinstance(value, float) else f"{said} {value}" for said, value in values]


def tree_label(config: SpeculationConfig) -> str:
    """The shape of the draft trees; empty for chains."""
    shape, size = config.speculative_token_tree, config.tree_size
    if shape is None:
        return f"tree {size}x{config.tree_width}" if size else ""
    name = shape if shape.isidentifier() else f"given {sha256(shape.encode()).hexdigest()[:8]}"
    return f"tree {name} first {size}" if size else f"tree {name}"
