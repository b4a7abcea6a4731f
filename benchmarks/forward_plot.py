"""What the benchmark of the forward found, as tables, as a picture and in sentences."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from drafter_markdown import table
from forward_contestants import INT8, LLAMA, MODULE, NATIVE, OPENVINO, TRANSFORMERS
from forward_figures import (
    BANDWIDTH_SHARE,
    MANY_ROWS,
    MANY_TO_ONE,
    PLAIN_SHAPES,
    PLAIN_TO_PEER,
    SHARE_ROWS,
    SHARE_SHAPES,
)
from rich.console import Console
from rich.table import Table

PAPER_WIDTH = 120  # columns where the output is no terminal
COLOURS = {
    NATIVE: "#2166ac",
    INT8: "#1b7837",
    MODULE: "#67a9cf",
    TRANSFORMERS: "#4d4d4d",
    LLAMA: "#d6912a",
    OPENVINO: "#b2182b",
}
STYLES = ("-", "--", ":")  # of contexts
SMALL = "small"
LEFT_HEADINGS = ("rows", "contestant")
NATIVE_HEADING = "native, times as fast"
CELL_HEADINGS = ("ms (quartiles)", "GB/s", "of bandwidth", "to one row", NATIVE_HEADING)
TEXT_HEADINGS = ("ms a token (quartiles)", "tokens/s", NATIVE_HEADING)
WORDS = {
    "bandwidth": f"{NATIVE} reads weights at {BANDWIDTH_SHARE:.0%} of the bandwidth or more at up to {SHARE_ROWS} "
    f"rows, {' and '.join(SHARE_SHAPES)}",
    "many_rows": f"{MANY_ROWS} rows cost {NATIVE} at most {MANY_TO_ONE:g} of one row",
    "plain": f"{NATIVE} decodes plainly at {PLAIN_TO_PEER:g} of the speed of {OPENVINO} GenAI or more, "
    f"{' and '.join(PLAIN_SHAPES)}",
}


def tables(result: Mapping) -> Iterator[tuple[str, Sequence[str], list[list[str]]]]:
    """Title, headings and lines of every table: one for each shape and context, and one for the texts."""
    for (shape, context), cells in grouped(result["cells"]).items():
        bandwidth = sum(cell["bandwidth"] for cell in cells) / len(cells)
        title = f"{shape}, context {context}: {cells[0]['weight_bytes'] / 1e6:.0f} MB of weights, "
        yield title + f"memory gives {bandwidth / 1e9:.1f} GB/s", (*LEFT_HEADINGS, *CELL_HEADINGS), cell_lines(cells)
    lines = [
        [text["shape"], name, *text_parts(figures)]
        for text in result["texts"]
        for name, figures in text["contestants"].items()
    ]
    if lines:
        yield f"{result['new_tokens']} tokens written greedily", ("shape", "contestant", *TEXT_HEADINGS), lines


def grouped(cells: Sequence[Mapping]) -> dict[tuple[str, int], list[Mapping]]:
    groups: dict[tuple[str, int], list[Mapping]] = {}
    for cell in cells:
        groups.setdefault((cell["shape"], cell["context"]), []).append(cell)
    return groups


def cell_lines(cells: Sequence[Mapping]) -> list[list[str]]:
    return [
        [str(cell["rows"]), name, *cell_parts(figures)]
        for cell in cells
        for name, figures in cell["contestants"].items()
    ]


def cell_parts(figures: Mapping) -> list[str]:
    return [
        milliseconds(figures["seconds"]),
        f"{figures['weights_per_second'] / 1e9:.1f}",
        f"{figures['bandwidth_share']:.0%}",
        ratio(figures["to_one_row"]),
        ratio(figures["native_speedup"]),
    ]


def text_parts(figures: Mapping) -> list[str]:
    times = figures["seconds_a_token"]
    return [milliseconds(times), f"{1 / times['median']:.0f}", ratio(figures["native_speedup"])]


def milliseconds(spread: Mapping[str, float]) -> str:
    low, middle, high = (f"{spread[part] * 1e3:.2f}" for part in ("p25", "median", "p75"))
    return f"{middle} ({low}-{high})"


def ratio(spread: Mapping[str, float] | None) -> str:
    return f"{spread['median']:.2f}" if spread else "-"


def show(result: Mapping) -> None:
    """The tables and sentences on the screen."""
    console = Console(width=None if Console().is_terminal else PAPER_WIDTH)
    for title, headings, lines in tables(result):
        shown = Table(title=title, title_justify="left")
        for heading in headings:
            shown.add_column(heading, justify="left" if heading in ("contestant", "shape") else "right")
        for line, following in zip(lines, [*lines[1:], None], strict=True):
            shown.add_row(*line, end_section=following is not None and following[0] != line[0])
        console.print(shown)
    for sentence in sentences(result):
        console.print(sentence, highlight=False, markup=False, soft_wrap=True)


def as_markdown(result: Mapping) -> str:
    parts = [f"{title}:\n\n{table(list(headings), lines)}" for title, headings, lines in tables(result)]
    return "\n\n".join(parts) + "\n"


def sentences(result: Mapping) -> list[str]:
    """Who is not there, how well logits agree, what those who waited took, and the verdicts."""
    lines = [f"left out: {name}: {reason}" for name, reason in result["left_out"].items()]
    for shape, distances in result["logit_distances"].items():
        told = ", ".join(f"{name} {distance:.3f}" for name, distance in distances.items())
        lines.append(f"{shape}: logits from those of the same weights in fp32, relative: {told}")
    waiting = ", ".join(f"{name} {share:.1%}" for name, share in result["waiting_cpu_share"].items())
    lines.append(f"CPU time of those who waited, in shares of one core: {waiting}")
    if result["verdicts"] is None:
        return [*lines, f"no verdict: {NATIVE!r} took no part"]
    return lines + [line for key, words in WORDS.items() for line in of_verdict(result["verdicts"][key], words)]


def of_verdict(verdict: Mapping | None, words: str) -> list[str]:
    if verdict is None:
        return [f"not measured: {words}"]
    line = f"{word(verdict)}: {words}: {verdict['hold']} of {verdict['cells']}; the worst:"
    return [line, *(f"  {row['cell']}: {row['value']:.2f}" for row in verdict["worst"])]


def word(verdict: Mapping) -> str:
    return "holds" if verdict["holds"] else "does not hold"


def plot(result: Mapping, path: Path) -> bool:
    """A panel for each shape: milliseconds by rows, and what reading the weights takes; false without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    shapes = list(dict.fromkeys(cell["shape"] for cell in result["cells"]))
    figure = Figure(figsize=(4.2 * len(shapes) + 1, 4.6), layout="constrained", facecolor="white")
    for axes, shape in zip(figure.subplots(1, len(shapes), squeeze=False)[0], shapes, strict=True):
        draw(axes, [cell for cell in result["cells"] if cell["shape"] == shape])
        axes.set_title(shape, loc="left", fontsize=SMALL)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = min(len(labels), 2 * len(shapes) + 1)
    figure.legend(handles, labels, loc="outside lower center", fontsize=SMALL, ncols=columns, frameon=False)
    figure.suptitle(title(result), fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True


def title(result: Mapping) -> str:
    contexts = list(dict.fromkeys(cell["context"] for cell in result["cells"]))
    styles = ", ".join(f"{context} ({style})" for context, style in zip(contexts, STYLES, strict=False))
    return f"milliseconds of a forward by rows\nbf16, threads: {result['threads']}; context {styles}"


def draw(axes, cells: Sequence[Mapping]) -> None:
    contexts = list(dict.fromkeys(cell["context"] for cell in cells))
    for context, style in zip(contexts, STYLES, strict=False):
        its = [cell for cell in cells if cell["context"] == context]
        for name in its[0]["contestants"]:
            draw_line(axes, [cell for cell in its if name in cell["contestants"]], name, style, context == contexts[0])
    floor = cells[0]["weight_bytes"] / max(cell["bandwidth"] for cell in cells) * 1e3
    axes.axhline(floor, color="black", linewidth=0.8, linestyle=":", label="reading the weights")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    places = sorted({cell["rows"] for cell in cells})
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    axes.set_xlabel("rows")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def draw_line(axes, cells: Sequence[Mapping], name: str, style: str, named: bool) -> None:
    spreads = [cell["contestants"][name]["seconds"] for cell in cells]
    middles = [spread["median"] * 1e3 for spread in spreads]
    reach = [
        [(spread["median"] - spread["p25"]) * 1e3 for spread in spreads],
        [(spread["p75"] - spread["median"]) * 1e3 for spread in spreads],
    ]
    axes.errorbar(
        [cell["rows"] for cell in cells],
        middles,
        yerr=reach,
        linestyle=style,
        color=COLOURS.get(name),
        marker="o",
        markersize=3.5,
        capsize=2,
        label=name if named else None,
    )
