"""The result as a picture: our contestants and transformers' by ratio, all systems by tokens a second."""

from collections.abc import Mapping
from pathlib import Path

from contestants import FOREDRAFT, PLAIN, TRANSFORMERS

PLAIN_ALPHA = 0.4  # of bars of plain decoding
COLOURS = ("#2166ac", "#4d4d4d", "#d6912a", "#b2182b")  # of systems in their order


def plot(result: Mapping, path: Path) -> bool:
    """Bars above one another with quartiles as whiskers; false where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    groups = result["summary"]
    figure = Figure(figsize=(max(10, 2 + 1.9 * len(groups)), 8.5), layout="constrained")
    above, below = figure.subplots(2)
    draw_bars(above, groups)
    above.axhline(1, color="black", linewidth=0.8)
    label(above, list(groups), "tokens a second, ratio to foredraft plain")
    draw_systems(below, result["systems"])
    figure.suptitle(f"{result['target']}, {result['dtype']}, {result['threads']} threads, {result['hardware']['cpu']}")
    figure.savefig(path)
    return True


def label(axes, groups: list[str], scale: str) -> None:
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(scale)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))


def draw_bars(axes, groups: Mapping[str, Mapping]) -> None:
    present = next(iter(groups.values()))
    names = [name for name in (*FOREDRAFT, *TRANSFORMERS) if name != PLAIN and name in present]
    width = 0.86 / len(names)
    for place, name in enumerate(names):
        spreads = [group[name]["ratio"] for group in groups.values()]
        whiskers = [[s["median"] - s["p25"] for s in spreads], [s["p75"] - s["median"] for s in spreads]]
        axes.bar(
            [index + left_of(place, len(names), width) for index in range(len(groups))],
            [spread["median"] for spread in spreads],
            width,
            yerr=whiskers,
            label=name,
            hatch=None if name in FOREDRAFT else "//",
            error_kw={"elinewidth": 0.8},
        )


def left_of(place: int, count: int, width: float) -> float:
    return (place - count / 2 + 0.5) * width


def draw_systems(axes, comparison: Mapping) -> None:
    """Two bars for each system and workload, and our lead over the best peer above them."""
    entries = comparison["workloads"] | ({"mean": comparison["mean"]} if len(comparison["workloads"]) > 1 else {})
    systems, width = list(comparison["mean"]["systems"]), 0.86 / (2 * len(comparison["mean"]["systems"]))
    for number, (system, colour) in enumerate(zip(systems, COLOURS, strict=False)):
        for part, alpha in enumerate((PLAIN_ALPHA, 1)):
            kind = ("plain", "speculation")[part]
            left = left_of(2 * number + part, 2 * len(systems), width)
            heights = [entry["systems"][system][kind] or 0 for entry in entries.values()]
            places = [index + left for index in range(len(entries))]
            name = f"{system} {('plain', 'best speculation')[part]}"
            axes.bar(places, heights, width, label=name, color=colour, alpha=alpha)
    for index, entry in enumerate(entries.values()):
        axes.annotate(lead_of(entry), (index, highest(entry)), ha="center", va="bottom", fontsize="small")
    axes.margins(y=0.15)
    label(axes, list(entries), "tokens a second; × our best over the best peer")


def lead_of(entry: Mapping) -> str:
    lead = entry["lead"]
    return f"×{lead['median'] if isinstance(lead, Mapping) else lead:.2f}"


def highest(entry: Mapping) -> float:
    return max(its[part] or 0 for its in entry["systems"].values() for part in ("plain", "speculation"))
