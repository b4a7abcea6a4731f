"""System against system as a table, for the screen and as markdown, and in sentences."""

from collections.abc import Mapping

from drafter_markdown import table
from generate_peers import OURS, SYSTEMS
from rich.table import Table

TITLE = "tokens a second, median: plain decoding and best speculation of each system"
MEAN = "geometric mean"
LEAD = ("ours / best peer", "best peer")


def headings(comparison: Mapping) -> list[str]:
    systems = comparison["mean"]["systems"]
    return ["workload", *(f"{system} {part}" for system in systems for part in ("plain", "best")), *LEAD]


def lines(comparison: Mapping) -> list[list[str]]:
    """A line for every workload, and one for the mean over several."""
    found = [[name, *system_cells(its["systems"]), *lead(its)] for name, its in comparison["workloads"].items()]
    if len(found) > 1:
        mean = comparison["mean"]
        found.append([MEAN, *system_cells(mean["systems"]), f"{mean['lead']:.2f}", ""])
    return found


def system_cells(systems: Mapping[str, Mapping]) -> list[str]:
    return [cell for system, its in systems.items() for cell in (whole(its["plain"]), speculation(system, its))]


def speculation(system: str, its: Mapping) -> str:
    return f"{whole(its['speculation'])} {short(system, its.get('speculation_by') or '')}".strip()


def short(system: str, name: str) -> str:
    """A contestant's name without that of its system."""
    return name.removeprefix(f"{system} ").removeprefix("hf ")


def whole(number: float | None) -> str:
    return "-" if number is None else f"{number:.0f}"


def lead(its: Mapping) -> tuple[str, str]:
    spread = its["lead"]
    return f"{spread['median']:.2f} ({spread['p25']:.2f}-{spread['p75']:.2f})", its["best_peer"]


def as_table(comparison: Mapping) -> Table:
    shown = Table(title=TITLE, title_justify="left")
    for heading in headings(comparison):
        shown.add_column(heading, justify="left" if heading in ("workload", *LEAD) else "right")
    for line in lines(comparison):
        shown.add_row(*line, end_section=line[0] == list(comparison["workloads"])[-1])
    return shown


def as_markdown(result: Mapping) -> str:
    comparison = result["systems"]
    told = "\n".join(f"- {sentence}" for sentence in sentences(result))
    return f"{TITLE}:\n\n{table(headings(comparison), lines(comparison))}\n\n{told}\n"


def sentences(result: Mapping) -> list[str]:
    """What the table does not hold: who is ahead, whose texts are the same, who takes no part, who rests."""
    comparison = result["systems"]
    rests = ", ".join(f"{name} {share:.3f}" for name, share in result["waiting_cpu_share"].items())
    told = [ahead(comparison), *agreement(comparison["texts"])]
    told += [f"left out: {name}: {reason}" for name, reason in result["left_out"].items()]
    return told + ([f"cores busy while others were timed: {rests}"] if rests else [])


def ahead(comparison: Mapping) -> str:
    workloads = comparison["workloads"]
    behind = [name for name, its in workloads.items() if its["lead"]["median"] < 1]
    return (
        f"{OURS}'s best over the best peer: {comparison['mean']['lead']:.2f}, geometric mean of {len(workloads)} "
        f"workloads; behind it on {', '.join(behind) or 'none'}"
    )


def agreement(texts: Mapping) -> list[str]:
    """Each system's texts, contestant by contestant."""
    told = []
    for system, ways in SYSTEMS.items():
        parts = [text_counts(system, name, texts["like"][name]) for name in ways if name in texts["like"]]
        if parts:
            told.append(
                f"texts of {system} like {OURS} plain's / like its own plain's, of {texts['prompts']}: "
                + ", ".join(parts)
            )
    return told


def text_counts(system: str, name: str, counts: Mapping) -> str:
    return f"{short(system, name)} {counts['foredraft_plain']} / {whole(counts['own_plain'])}"
