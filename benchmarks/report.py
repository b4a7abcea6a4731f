"""The result on the screen and as a plot."""

from pathlib import Path

from contestants import FOREDRAFT, PLAIN
from rich.console import Console
from rich.table import Table
from summary import ALL, best_drafter

NOTES = (
    "ratio: tokens a second over the whole request, prefill included, to foredraft plain on the same prompt in the "
    "same round; median (quartiles). decode: the same after the first step. tau: tokens a target forward. "
    "unlike: prompts whose text differs from foredraft plain's / transformers plain's in any round."
)
BF16_NOTE = (
    "Below fp32 a near-tie may resolve differently when several rows are computed at once; texts may differ there."
)


def show(result: dict) -> None:
    console = Console(width=None if Console().is_terminal else 150)
    for workload, group in result["summary"].items():
        console.print(table(workload, group, result))
    console.print(NOTES + (f" {BF16_NOTE}" if result["dtype"] != "float32" else ""))
    for line in conclusions(result):
        console.print(line)


def table(workload: str, group: dict, result: dict) -> Table:
    count = result["prompts"] if workload == ALL else result["prompts_by_workload"][workload]
    shown = Table(title=f"{workload}: {count} prompts, {result['rounds']} rounds", title_justify="left")
    shown.add_column("contestant")
    for name in ("ratio", "decode", "tokens/s", "tau", "draft", "verify", "other", "unlike"):
        shown.add_column(name, justify="right")
    for name, figures in group.items():
        shown.add_row(name, *cells(figures), end_section=name == list(FOREDRAFT)[-1])
    return shown


def cells(figures: dict) -> list[str]:
    shares = figures["time_shares"]
    return [
        with_quartiles(figures["ratio"]),
        with_quartiles(figures["decode_ratio"]),
        f"{figures['tokens_per_second']['median']:.1f}",
        f"{figures['tau']:.2f}",
        *(f"{shares[part]:.0%}" if part in shares else "" for part in ("draft", "verify", "other")),
        f"{figures['prompts_unlike_plain']} / {figures['prompts_unlike_hf_plain']}",
    ]


def with_quartiles(spread: dict | None) -> str:
    return f"{spread['median']:.2f} ({spread['p25']:.2f}-{spread['p75']:.2f})" if spread else "-"


def conclusions(result: dict) -> list[str]:
    """What the run was for, one line each."""
    lines = []
    for workload, group in result["summary"].items():
        best = best_drafter(group)
        lines.append(
            f"{workload}: plain is {with_quartiles(group[PLAIN]['ratio_to_hf_plain'])} of transformers plain; best "
            f"drafter is {best}, {with_quartiles(group[best]['ratio'])} of plain, "
            f"{with_quartiles(group[best]['ratio_to_hf_assisted'])} of transformers assisted"
        )
    step = result["plain_step"]
    lines.append(
        f"a plain step takes {step['seconds'] * 1e3:.2f} ms; reading its {step['bytes_read'] / 1e6:.1f} MB at "
        f"{result['read_bandwidth'] / 1e9:.1f} GB/s would take {step['floor_seconds'] * 1e3:.2f} ms, "
        f"{step['bandwidth_share']:.0%}"
    )
    return lines


def plot(result: dict, path: Path) -> bool:
    """Bars of every contestant's ratio by workload, quartiles as whiskers; false where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    groups = result["summary"]
    figure = Figure(figsize=(max(7, 1.9 * len(groups)), 4.5), layout="constrained")
    axes = figure.subplots()
    draw_bars(axes, groups)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set_ylabel("tokens a second, ratio to foredraft plain")
    axes.set_title(f"{result['target']}, {result['dtype']}, {result['threads']} threads, {result['hardware']['cpu']}")
    axes.legend(fontsize="small", ncols=2)
    figure.savefig(path)
    return True


def draw_bars(axes, groups: dict[str, dict]) -> None:
    names = [name for name in next(iter(groups.values())) if name != PLAIN]
    width = 0.86 / len(names)
    for place, name in enumerate(names):
        spreads = [group[name]["ratio"] for group in groups.values()]
        whiskers = [[s["median"] - s["p25"] for s in spreads], [s["p75"] - s["median"] for s in spreads]]
        left = (place - len(names) / 2 + 0.5) * width
        axes.bar(
            [index + left for index in range(len(groups))],
            [spread["median"] for spread in spreads],
            width,
            yerr=whiskers,
            label=name,
            hatch=None if name in FOREDRAFT else "//",
            error_kw={"elinewidth": 0.8},
        )
