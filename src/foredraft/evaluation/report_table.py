"""A report on the screen: a table for each temperature, a section for each group of prompts."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from foredraft.evaluation.figures import Figures, Spread
from foredraft.evaluation.report import Report

HEADINGS = ("first", "by position", "tau", "cost", "tok/s", "ratio", "unlike")
NOTES = (
    "first: acceptance of the first drafted token. by position: the same at every position, of the drafts that reach "
    "it, in percent. tau: tokens a target forward. cost: drafting a round, of a plain step. ratio: tokens a second to "
    "plain decoding's on the same prompt in the same round, whole requests; median (quartiles). unlike: prompts whose "
    "text left plain decoding's."
)
SHOWN_POSITIONS = 4


def report_table(report: Report) -> Group:
    """Everything there is to show."""
    return Group(*(table_at(report, temperature) for temperature in report.temperatures), NOTES)


def table_at(report: Report, temperature: float) -> Table:
    run = f"{counted(report.rounds, 'round')}, up to {report.max_new_tokens} tokens"
    title = f"{report.target}, temperature {temperature:g}, {run}"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), header_style="underline")
    table.add_column("drafter", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right", no_wrap=True)
    for group in [*report.prompts, *report.means]:
        rows = report.rows(group, temperature)
        table.add_row(Text(f"{group}: {counted(rows[0].prompts, 'prompt')}", "bold"))
        for row in rows:
            table.add_row(f" {row.contestant}", *cells(row))
        table.add_row()
    return table


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cells(row: Figures) -> list[str]:
    """Figures in the order of `HEADINGS`."""
    return [
        percent(row.first_token_acceptance),
        by_position(row),
        f"{row.tau:.2f}",
        f"{row.draft_cost:.2f}" if row.draft_cost is not None and row.acceptance else "-",
        f"{row.tokens_per_second.median:.0f}",
        with_quartiles(row.ratio),
        f"{row.prompts_unlike_plain}",
    ]


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def by_position(row: Figures) -> str:
    shown = [f"{share:.0%}".rstrip("%") for share in row.acceptance[:SHOWN_POSITIONS]]
    return " ".join([*shown, *(["…"] if len(row.acceptance) > SHOWN_POSITIONS else [])]) or "-"


def with_quartiles(spread: Spread) -> str:
    return f"{spread.median:.2f} ({spread.p25:.2f}-{spread.p75:.2f})"
