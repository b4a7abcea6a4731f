"""What was measured, as one value that is written to a file, read back, and shown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.replaced_file import replace_text
from foredraft.evaluation.figures import Figures, Spread, figures_of, mean_of
from foredraft.evaluation.turns import Sample, Turn


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Drafters measured against plain decoding.

    Attributes:
        target: The model that wrote.
        contestants: What was set for each, `plain` first.
        prompts: How many in each group.
        temperatures, rounds, max_new_tokens, ignore_eos, seed: How they were run.
        means: Groups that each mean row is over, by the row's name.
        figures: A row for every group, temperature and contestant, the means last.
        turns: Everything that was run.
    """

    target: str
    contestants: dict[str, dict[str, Any]]
    prompts: dict[str, int]
    temperatures: tuple[float, ...]
    rounds: int
    max_new_tokens: int
    ignore_eos: bool
    seed: int
    means: dict[str, tuple[str, ...]]
    figures: tuple[Figures, ...]
    turns: tuple[Turn, ...]

    def row(self, group: str, temperature: float, contestant: str) -> Figures:
        """The figures of one contestant in one group or mean. Raises `KeyError` where there are none."""
        for row in self.figures:
            if (row.group, row.temperature, row.contestant) == (group, temperature, contestant):
                return row
        raise KeyError((group, temperature, contestant))

    def rows(self, group: str, temperature: float) -> list[Figures]:
        """The figures of every contestant in one group or mean."""
        return [self.row(group, temperature, name) for name in self.contestants]

    def record(self) -> dict[str, Any]:
        """The report as JSON holds it; `from_record` reads it back."""
        figures = [asdict(row) | {"first_token_acceptance": row.first_token_acceptance} for row in self.figures]
        own = {name: getattr(self, name) for name in self.__slots__ if name not in ("figures", "turns")}
        return plain_json(own | {"figures": figures, "turns": [asdict(turn) for turn in self.turns]})

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Report":
        """The report that `record` was made from; further keys are passed over."""
        own = {name: record[name] for name in cls.__slots__}
        return cls(
            **own
            | {
                "temperatures": tuple(own["temperatures"]),
                "means": {name: tuple(groups) for name, groups in own["means"].items()},
                "figures": tuple(figures_from(row) for row in own["figures"]),
                "turns": tuple(turn_from(turn) for turn in own["turns"]),
            }
        )


def all_figures(
    turns: Sequence[Turn],
    groups: Sequence[str],
    temperatures: Sequence[float],
    contestants: Sequence[str],
    means: Mapping[str, Sequence[str]],
) -> tuple[Figures, ...]:
    """A row for every group, temperature and contestant, and those of the means after them."""
    by_place: dict[tuple[str, float], list[Turn]] = {}
    for turn in turns:
        by_place.setdefault((turn.group, turn.temperature), []).append(turn)
    rows = {
        (group, temperature, name): figures_of(by_place[group, temperature], name)
        for group in groups
        for temperature in temperatures
        for name in contestants
    }
    mean_rows = [
        mean_of(mean, [rows[group, temperature, name] for group in over])
        for mean, over in means.items()
        for temperature in temperatures
        for name in contestants
    ]
    return (*rows.values(), *mean_rows)


def plain_json(value: Any) -> Any:
    """Tuples as lists, as JSON reads them back."""
    return json.loads(json.dumps(value))


def figures_from(record: Mapping[str, Any]) -> Figures:
    own = {name: record[name] for name in Figures.__slots__}
    spreads = {name: spread_from(own[name]) for name in ("tokens_per_second", "ratio", "decode_ratio")}
    shares = {name: tuple(own[name]) for name in ("acceptance", "conditional_acceptance")}
    counts = SpeculationStatistics(**own["counts"]) if own["counts"] else None
    return Figures(**own | spreads | shares | {"counts": counts})


def spread_from(record: Mapping[str, float] | None) -> Spread | None:
    return Spread(**record) if record else None


def turn_from(record: Mapping[str, Any]) -> Turn:
    samples = {
        name: Sample(**own | {"statistics": SpeculationStatistics(**own["statistics"])})
        for name, own in record["samples"].items()
    }
    return Turn(**record | {"order": tuple(record["order"]), "text": tuple(record["text"]), "samples": samples})


def write_record(record: Mapping[str, Any], path: Path) -> None:
    """Write JSON with a line for each member of a member, under a temporary name that is then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, laid_out(record))


def laid_out(record: Mapping[str, Any]) -> str:
    members = (f"{json.dumps(key)}: {member(value)}" for key, value in record.items())
    return "{\n" + ",\n".join(members) + "\n}\n"


def member(value: Any) -> str:
    """A list or an object over one line for each of its members, anything else on one line."""
    if isinstance(value, dict) and value:
        return "{\n  " + ",\n  ".join(f"{json.dumps(key)}: {json.dumps(its)}" for key, its in value.items()) + "\n}"
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)
