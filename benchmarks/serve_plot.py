"""What the benchmark of serving found, as a picture, as a table and in sentences."""

from collections.abc import Mapping
from pathlib import Path

from drafter_markdown import table
from serve_contestants import AUTO, FIXED, OFF, PEER, PEER_ALONE

COLOURS = {OFF: "#4d4d4d", FIXED: "#d6912a", AUTO: "#2166ac", PEER: "#b2182b", PEER_ALONE: "#ef8a62"}
TIMES = {
    "first_token": "first token",
    "between_tokens": "a token",
    "between_chunks": "between chunks",
    "whole": "whole",
}
HEADINGS = ["at once", "contestant", "tokens/s", "to off (quartiles)", *(f"{name}, ms" for name in TIMES.values())]
SMALL = "small"


def plot(result: Mapping, path: Path) -> bool:
    """Two panels by requests in flight: tokens a second, and time to the first token; false without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(11, 4.4), layout="constrained", facecolor="white")
    speed, wait = figure.subplots(1, 2)
    for name in names_of(result):
        colour = COLOURS.get(name)
        line = draw_speed(speed, result["cells"], name, colour)
        draw_wait(wait, result["cells"], name, line.get_color())
    for axes in (speed, wait):
        dress(axes, [cell["concurrency"] for cell in result["cells"]])
    speed.set_title("tokens a second (median and quartiles of rounds)", loc="left", fontsize=SMALL)
    speed.set_ylim(bottom=0)
    wait.set_title("time to the first token in ms: p50, dashed p99", loc="left", fontsize=SMALL)
    wait.set_yscale("log")
    speed.legend(fontsize=SMALL, frameon=False)
    figure.suptitle(title(result), fontsize="medium")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return True


def title(result: Mapping) -> str:
    place = f"{result['target']}, {result['dtype']}, {result['device']}, threads: {result['threads']}"
    return f"{place}, temperature {result['temperature']:g}, {result['max_new_tokens']} tokens a request"


def names_of(result: Mapping) -> list[str]:
    return list(result["cells"][0]["contestants"])


def draw_speed(axes, cells, name: str, colour: str | None):
    spreads = [cell["contestants"][name]["tokens_per_second"] for cell in cells]
    places, middles = [cell["concurrency"] for cell in cells], [one["median"] for one in spreads]
    reach = [[one["median"] - one["p25"] for one in spreads], [one["p75"] - one["median"] for one in spreads]]
    return axes.errorbar(places, middles, yerr=reach, color=colour, marker="o", markersize=4, capsize=2, label=name)[0]


def draw_wait(axes, cells, name: str, colour: str) -> None:
    for share, style in (("p50", "-"), ("p99", "--")):
        known = [(cell["concurrency"], cell["contestants"][name]["first_token"]) for cell in cells]
        points = [(place, its[share] * 1e3) for place, its in known if its]
        axes.plot(
            [place for place, _ in points], [ms for _, ms in points], style, color=colour, marker="o", markersize=3
        )


def dress(axes, places: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(places, [str(place) for place in places])
    axes.minorticks_off()
    axes.set_xlabel("requests in flight")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def as_markdown(result: Mapping) -> str:
    """A line for each concurrency and contestant; latencies in milliseconds, p50 / p99."""
    rows = [
        [str(cell["concurrency"]), name, *cells_of(figures)]
        for cell in result["cells"]
        for name, figures in cell["contestants"].items()
    ]
    return table(HEADINGS, rows) + "\n"


def cells_of(figures: Mapping) -> list[str]:
    speed = f"{figures['tokens_per_second']['median']:.0f}"
    return [speed, quartiles(figures["ratio"]), *(milliseconds(figures[name]) for name in TIMES)]


def milliseconds(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    return " / ".join(f"{found[share] * 1e3:.{0 if found['p50'] >= 0.1 else 1}f}" for share in ("p50", "p99"))


def quartiles(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['p25']:.2f}-{spread['p75']:.2f})"


def sentences(result: Mapping) -> list[str]:
    """The verdicts, a line each, and what the clients and the idle servers cost."""
    verdicts = result["verdicts"]
    lines = [] if result["complete"] else ["not complete: the run goes on"]
    if verdicts is None:
        return [*lines, f"no verdict: {AUTO!r} took no part", costs(result)]
    lines.append(of_alone(verdicts["alone"]))
    rows = ", ".join(f"{row['concurrency']}: {quartiles(row)}" for row in verdicts["never_under"]["rows"])
    limit = verdicts["never_under"]["limit"]
    lines.append(f"{word(verdicts['never_under'])}: {AUTO} at least {limit} of {OFF} at every concurrency; {rows}")
    lines.append(of_peak(verdicts["peak"], result["peaks"]))
    return [*lines, costs(result)]


def of_alone(verdict: Mapping | None) -> str:
    if verdict is None:
        return "not measured: one user alone"
    return f"{word(verdict)}: {AUTO} at least {verdict['limit']} of {OFF} for one user: {quartiles(verdict)}"


def of_peak(verdict: Mapping | None, peaks: Mapping) -> str:
    told = ", ".join(f"{name} {spread['median']:.0f}" for name, spread in peaks.items())
    if verdict is None:
        return f"not measured: a peer's peak; peaks in tokens a second: {told}"
    against = " and ".join(verdict["against"])
    return (
        f"{word(verdict)}: peak of {AUTO} at least {verdict['limit']} of {against}: {quartiles(verdict)}; "
        f"peaks in tokens a second: {told}"
    )


def costs(result: Mapping) -> str:
    """What took CPU time beside the server that was asked, at its worst, in shares of one core."""
    every = [figures for cell in result["cells"] for figures in cell["contestants"].values()]
    clients, idle = (max(its[f"{kind}_cpu_share"] for its in every) for kind in ("client", "idle_servers"))
    return f"clients took up to {clients:.0%} of a core, servers that nobody asked {idle:.1%}"


def word(verdict: Mapping) -> str:
    return "holds" if verdict["holds"] else "FAILS"
