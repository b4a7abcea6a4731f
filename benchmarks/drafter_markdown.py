"""A report as markdown: what each drafter does on the mean, then every workload."""

from foredraft.evaluation.figures import Figures
from foredraft.evaluation.report import Report
from foredraft.evaluation.report_table import by_position, percent, with_quartiles
from foredraft.evaluation.turns import PLAIN


def as_markdown(report: Report) -> str:
    """Two tables for each temperature."""
    parts = [part for temperature in report.temperatures for part in at(report, temperature)]
    return "\n\n".join(parts) + "\n"


def at(report: Report, temperature: float) -> list[str]:
    group = headline(report)
    return [
        f"Temperature {temperature:g}, {group}:",
        overview(report.rows(group, temperature)),
        f"Temperature {temperature:g}, tau / tokens a second to plain decoding's, by workload:",
        by_workload(report, temperature),
    ]


def headline(report: Report) -> str:
    """The group that stands for all: the first mean, or the only group."""
    return next(iter([*report.means, *report.prompts]))


def overview(rows: list[Figures]) -> str:
    headings = ["drafter", "first token", "by position, %", "tau", "draft cost", "ratio (quartiles)", "unlike plain"]
    return table(headings, [overview_cells(row) for row in rows if row.contestant != PLAIN])


def overview_cells(row: Figures) -> list[str]:
    return [
        row.contestant,
        percent(row.first_token_acceptance),
        by_position(row),
        f"{row.tau:.2f}",
        f"{row.draft_cost:.2f}" if row.draft_cost is not None else "-",
        with_quartiles(row.ratio),
        f"{row.prompts_unlike_plain} of {row.prompts}",
    ]


def by_workload(report: Report, temperature: float) -> str:
    groups = [*report.prompts, *report.means]
    rows = [
        [name, *(both(report.row(group, temperature, name)) for group in groups)]
        for name in report.contestants
        if name != PLAIN
    ]
    return table(["drafter", *groups], rows)


def both(row: Figures) -> str:
    return f"{row.tau:.2f} / {row.ratio.median:.2f}"


def table(headings: list[str], rows: list[list[str]]) -> str:
    lines = [headings, ["---", *["---:"] * (len(headings) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
