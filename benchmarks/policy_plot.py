"""What the benchmark of the policy found, as a picture, as tables and in sentences."""

from collections.abc import Mapping, Sequence
from math import log2
from pathlib import Path
from statistics import fmean

from drafter_markdown import table
from policy_contestants import AUTO

from foredraft.evaluation.turns import PLAIN

ROW, COLUMN = 0.2, 0.74  # inches
REACH = 1.0  # powers of two to the ends of the colour scale
COLOURS = ("#b2182b", "#ffffff", "#2166ac")  # slower than plain decoding, as fast, faster
DARK = 0.65  # of the reach: from here on figures are white
WORDS = {
    "near_best": "of the best fixed setting in every cell",
    "above_plain": "of plain decoding in every cell",
}


def plot(result: Mapping, path: Path) -> bool:
    """Ratios to plain decoding as a table in colours, a panel for each concurrency; false without matplotlib.

    White is plain decoding's speed. The best fixed setting of a row is bold, the column of `auto` framed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    names, panels = list(result["contestants"]), by_concurrency(result["cells"])
    lines = sum(len(rows) + 3 for rows in panels.values())
    size = (max(7.0, 1.6 + COLUMN * len(names)), 0.9 + ROW * lines)
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    heights = [len(rows) for rows in panels.values()]
    every = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (concurrency, rows) in zip(every, panels.items(), strict=True):
        draw(axes, rows, names)
        axes.set_title(f"{concurrency} at once", loc="left", fontsize="medium", fontweight="bold")
    figure.suptitle(title(result), fontsize="medium")
    figure.savefig(path)
    return True


def title(result: Mapping) -> str:
    place = f"{result['target']}, {result['dtype']}, {result['device']}, threads: {result['threads']}"
    return f"{place}\ntokens a second to plain decoding's; bold: the best fixed setting; framed: {AUTO}"


def by_concurrency(cells: Sequence[Mapping]) -> dict[int, list[Mapping]]:
    """Cells by concurrency, the temperatures of a workload next to each other."""
    panels: dict[int, list[Mapping]] = {}
    for cell in cells:
        panels.setdefault(cell["concurrency"], []).append(cell)
    order = list(dict.fromkeys(cell["workload"] for cell in cells))
    return {
        concurrency: sorted(rows, key=lambda cell: (order.index(cell["workload"]), cell["temperature"]))
        for concurrency, rows in panels.items()
    }


def draw(axes, rows: Sequence[Mapping], names: list[str]) -> None:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    logs = [[log2(median(cell, name)) for name in names] for cell in rows]
    colours = LinearSegmentedColormap.from_list("to plain", COLOURS)
    axes.imshow(logs, cmap=colours, vmin=-REACH, vmax=REACH, aspect="auto")
    for row, cell in enumerate(rows):
        for column, name in enumerate(names):
            axes.text(
                column,
                row,
                f"{median(cell, name):.2f}",
                ha="center",
                va="center",
                fontsize=8,
                fontweight="bold" if name == cell["best_fixed"] else "normal",
                color="white" if abs(logs[row][column]) > DARK * REACH else "black",
            )
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{cell['workload']}, T {cell['temperature']:g}" for cell in rows], fontsize=8)
    axes.tick_params(length=0, labeltop=True, labelbottom=False, top=False)
    for side in axes.spines.values():
        side.set_visible(False)
    if AUTO in names:
        corner = (names.index(AUTO) - 0.5, -0.5)
        axes.add_patch(Rectangle(corner, 1, len(rows), fill=False, linewidth=1.8, edgecolor="black", clip_on=False))


def median(cell: Mapping, name: str) -> float:
    return cell["contestants"][name]["ratio"]["median"]


def as_markdown(result: Mapping) -> str:
    """Mean ratio to plain over workloads by concurrency and temperature, and over all cells; a line a contestant."""
    places = list(dict.fromkeys((cell["concurrency"], cell["temperature"]) for cell in result["cells"]))
    headings = ["setting", *(f"{concurrency} at once, T {temperature:g}" for concurrency, temperature in places)]
    headings += ["mean of cells", "all tokens / all seconds"]
    rows = [[name, *means(result, name, places), *mix_cells(result["mix"][name])] for name in result["contestants"]]
    return table(headings, [row for row in rows if row[0] != PLAIN]) + "\n"


def means(result: Mapping, name: str, places: Sequence[tuple[int, float]]) -> list[str]:
    cells = result["cells"]
    groups = [[cell for cell in cells if (cell["concurrency"], cell["temperature"]) == place] for place in places]
    return [f"{fmean(median(cell, name) for cell in group):.2f}" for group in groups]


def mix_cells(mix: Mapping) -> list[str]:
    return [f"{mix['cell_mean']:.2f}", quartiles(mix["ratio"])]


def quartiles(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.3f} ({spread['p25']:.3f}-{spread['p75']:.3f})"


def sentences(result: Mapping) -> list[str]:
    """The verdicts, a line each with the worst cells below it, and what `auto` chose."""
    verdicts, chosen = result["verdicts"], result["choices"]
    if verdicts is None:
        return [f"no verdict: {AUTO!r} took no part"]
    mix = verdicts["mix"]
    ways = ", ".join(f"{way} {share:.0%}" for way, share in chosen.items())
    return [
        *(line for key, words in WORDS.items() for line in of_cells(verdicts[key], words)),
        f"{word(mix)}: over all cells together {quartiles(mix)} of {mix['against']}, the best single setting",
        *beside_itself(result["noise"]),
        f"rounds of {AUTO} by way to draft: {ways or 'not counted'}",
    ]


def beside_itself(noise: Mapping | None) -> list[str]:
    if noise is None:
        return []
    near = f"within {noise['limit']} in {noise['near']} of {noise['cells']} cells"
    return [f"noise: plain decoding beside itself {noise['least']:.2f} to {noise['most']:.2f}, {near}"]


def of_cells(verdict: Mapping, words: str) -> list[str]:
    line = f"{word(verdict)}: at least {verdict['limit']} {words}: {verdict['hold']} of {verdict['cells']}; the worst:"
    return [line, *(f"  {row['cell']}: {quartiles(row)} of {row['against']}" for row in verdict["worst"])]


def word(verdict: Mapping) -> str:
    return "holds" if verdict["holds"] else "FAILS"
