"""A report as a picture: tau above, tokens a second to plain decoding's below; a dot a workload, a bar their mean."""

from collections.abc import Callable
from pathlib import Path

from drafter_markdown import headline

from foredraft.evaluation.figures import Figures
from foredraft.evaluation.report import Report
from foredraft.evaluation.turns import PLAIN

BAR = 0.16  # half its width
SPAN = 0.5  # of the temperatures of one drafter
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf")
COLOURS += ("#1b3a57", "#f2c14e")
MARKS = ("filled", "hollow", "hollow, further right")


def plot(report: Report, subtitle: str, path: Path) -> bool:
    """Draw; false where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    drafters = [name for name in report.contestants if name != PLAIN]
    figure = Figure(figsize=(max(7, 1.1 * len(drafters)), 7.5), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True)
    draw(upper, report, drafters, lambda row: row.tau)
    draw(lower, report, drafters, lambda row: row.ratio.median)
    upper.set_ylabel("tau: tokens a target forward")
    lower.set_ylabel("tokens a second, ratio to plain")
    lower.set_xticks(range(len(drafters)), drafters, rotation=30, ha="right")
    marks = ", ".join(f"{mark} {t:g}" for mark, t in zip(MARKS, report.temperatures, strict=False))
    figure.suptitle(f"{subtitle}\ntemperature: {marks}; bar: {headline(report)}")
    figure.legend(*upper.get_legend_handles_labels(), loc="outside lower center", fontsize="small", ncols=6)
    figure.savefig(path)
    return True


def draw(axes, report: Report, drafters: list[str], value: Callable[[Figures], float]) -> None:
    for place, temperature in enumerate(report.temperatures):
        shift = SPAN * ((place + 0.5) / len(report.temperatures) - 0.5)
        for index, group in enumerate(report.prompts):
            axes.scatter(
                [drafter + shift for drafter in range(len(drafters))],
                [value(report.row(group, temperature, name)) for name in drafters],
                s=22,
                edgecolors=COLOURS[index % len(COLOURS)],
                facecolors=COLOURS[index % len(COLOURS)] if place == 0 else "none",
                label=group if place == 0 else None,
            )
        means = [value(report.row(headline(report), temperature, name)) for name in drafters]
        lefts = [drafter + shift - BAR for drafter in range(len(drafters))]
        axes.hlines(means, lefts, [left + 2 * BAR for left in lefts], color="black", linewidth=1.5)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", linewidth=0.3)
