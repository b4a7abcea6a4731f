"""What steps cost on this machine, as plain values and as tables."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE
from rich.table import Table

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.cost_store import renewed_costs
from foredraft.engine.engine import Engine
from foredraft.engine.step_costs import PLAIN, StepCosts, option_label

SECONDS = 6.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardLine:
    """A measured forward of the target.

    Attributes:
        rows, requests, context: Its size: packed rows of all requests, requests, committed positions of each.
        measured_seconds: As measured.
        seconds: As decisions read it, smoothed over the rows.
        plain_steps: The same in forwards of one row for each request.
    """

    rows: int
    requests: int
    context: int
    measured_seconds: float
    seconds: float
    plain_steps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftLine:
    """Calls of a drafter for one number of requests."""

    requests: int
    seconds: float
    plain_steps: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DrafterLine:
    """What one way to draft costs.

    Attributes:
        name: The method, its model, and the length and shape of its drafts.
        nodes: Tokens of a whole draft.
        calls: Its calls by number of requests; empty where the cache has no room to measure it.
        break_even: Accepted tokens a step from which on whole drafts pay for one request; none without calls.
    """

    name: str
    nodes: int
    calls: list[DraftLine]
    break_even: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class CostReport:
    """Costs of a target's forwards and of drafting for it; a plain step is a forward of one row a request.

    Attributes:
        context: Committed positions a request in plain steps that drafters are compared with.
    """

    context: int
    forwards: list[ForwardLine]
    drafters: list[DrafterLine]


def cost_report(engine: Engine, asked: SpeculationConfig) -> CostReport:
    """Measure `engine` anew and every way to draft that `asked` leaves to choose from; keeps what was measured.

    Raises `UserError` kinds for a drafter that cannot serve.
    """
    trial = engine.prepare(engine.request([0], SamplingParams(), asked, 0), 0, 0)
    options = [option.speculation for option in trial.options]
    return reported(renewed_costs(engine, options, seconds=SECONDS), options)


def reported(costs: StepCosts, options: Sequence[SpeculationConfig]) -> CostReport:
    context = min(cost.context for cost in costs.forwards if cost.requests == 1)
    forwards = []
    for cost in sorted(costs.forwards, key=lambda cost: (cost.requests, cost.context, cost.rows)):
        seconds = costs.forward_seconds(cost.rows, cost.requests, cost.context)
        plain = costs.forward_seconds(cost.requests, cost.requests, cost.context)
        forwards.append(
            ForwardLine(
                rows=cost.rows,
                requests=cost.requests,
                context=cost.context,
                measured_seconds=cost.seconds,
                seconds=seconds,
                plain_steps=seconds / plain,
            )
        )
    by_label = {option_label(config): config for config in options}
    by_label.pop(PLAIN, None)
    drafters = [drafter_line(costs, label, config.nodes, context) for label, config in by_label.items()]
    return CostReport(context=context, forwards=forwards, drafters=drafters)


def drafter_line(costs: StepCosts, label: str, nodes: int, context: int) -> DrafterLine:
    calls = []
    for cost in costs.drafts.get(label, ()):
        seconds = costs.draft_seconds(label, cost.requests)
        plain = costs.forward_seconds(cost.requests, cost.requests, context)
        calls.append(DraftLine(requests=cost.requests, seconds=seconds, plain_steps=seconds / plain))
    if not calls:
        return DrafterLine(name=label, nodes=nodes, calls=[], break_even=None)
    step = costs.draft_seconds(label, 1) + costs.forward_seconds(nodes + 1, 1, context)
    break_even = step / costs.forward_seconds(1, 1, context) - 1
    return DrafterLine(name=label, nodes=nodes, calls=calls, break_even=break_even)


def forward_table(report: CostReport) -> Table:
    """Milliseconds by rows, one column for each number of requests and context."""
    table = Table(title="forwards of the target, ms (in plain steps)", title_justify="left", box=SIMPLE)
    table.add_column("rows", justify="right")
    columns = list(dict.fromkeys((line.requests, line.context) for line in report.forwards))
    for requests, context in columns:
        table.add_column(f"{counted(requests)}\n{context} positions", justify="right", no_wrap=True)
    cells = {(line.rows, line.requests, line.context): line for line in report.forwards}
    for rows in sorted({line.rows for line in report.forwards}):
        table.add_row(str(rows), *(forward_cell(cells.get((rows, *column))) for column in columns))
    return table


def forward_cell(line: ForwardLine | None) -> str:
    return f"{milliseconds(line.seconds)} ({line.plain_steps:.2f})" if line else ""


def drafter_table(report: CostReport) -> Table:
    """Milliseconds of a call by requests, and what a whole draft must bring."""
    title = "calls of drafters, ms (in plain steps)"
    table = Table("drafter", "tokens", title=title, title_justify="left", box=SIMPLE)
    counts = sorted({call.requests for line in report.drafters for call in line.calls})
    for requests in counts:
        table.add_column(counted(requests), justify="right", no_wrap=True)
    table.add_column("pays from", justify="right")
    for line in report.drafters:
        calls = {call.requests: call for call in line.calls}
        cells = [draft_cell(calls.get(requests)) for requests in counts]
        pays = "no room to measure" if line.break_even is None else f"{line.break_even:.2f} accepted a step"
        table.add_row(line.name, str(line.nodes), *cells, pays)
    return table


def draft_cell(call: DraftLine | None) -> str:
    return f"{milliseconds(call.seconds)} ({call.plain_steps:.2f})" if call else ""


def counted(requests: int) -> str:
    return f"{requests} request" if requests == 1 else f"{requests} requests"


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 0.1 else f"{seconds * 1e3:.0f}"
