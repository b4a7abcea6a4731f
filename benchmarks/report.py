"""The result on the screen."""

from contestants import PLAIN
from generate_peers import SYSTEMS
from generate_systems_table import as_table, sentences
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
    console.print(as_table(result["systems"]))
    for line in [*conclusions(result), *sentences(result)]:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def table(workload: str, group: dict, result: dict) -> Table:
    count = result["prompts"] if workload == ALL else result["prompts_by_workload"][workload]
    shown = Table(title=f"{workload}: {count} prompts, {result['rounds']} rounds", title_justify="left")
    shown.add_column("contestant")
    for name in ("ratio", "decode", "tokens/s", "tau", "draft", "verify", "other", "unlike"):
        shown.add_column(name, justify="right")
    for ways in SYSTEMS.values():
        for name in (name for name in ways if name in group):
            shown.add_row(name, *cells(group[name]))
        shown.add_section()
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
