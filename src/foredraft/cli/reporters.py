"""How texts and their figures leave the command: on the screen while they are written, or as JSON lines."""

import json
from collections.abc import Sequence
from itertools import cycle
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from foredraft.cli.comparison import Comparison
from foredraft.cli.figures import comparison_record, record, summary, total, total_comparison, verdict
from foredraft.cli.source_runs import SourceRuns
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.drafters.drafter import BUILT_IN, registry
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.sampling.detokenizer import Detokenizer

PALETTE = ("cyan", "magenta", "green", "yellow", "blue", "red")


class Reporter(Protocol):
    """Is told what is written, as it is written, each text whole before the next."""

    def token(self, event: TokenEvent, heading: str) -> None:
        """Text under a heading; an empty heading is not shown."""

    def output(self, output: RequestOutput) -> None:
        """A text is finished."""

    def compared(self, comparison: Comparison) -> None:
        """A text is finished both ways."""

    def finished(self, outputs: Sequence[RequestOutput], seconds: float) -> None:
        """Several texts are finished; they took `seconds` together."""

    def all_compared(self, comparisons: Sequence[Comparison]) -> None:
        """Several texts are finished both ways."""


class JsonReporter:
    """One JSON object a text, one a line, nothing else."""

    def __init__(self, config: SpeculationConfig):
        self.config = config

    def token(self, event: TokenEvent, heading: str) -> None:
        """Nothing is told before a text is finished."""

    def output(self, output: RequestOutput) -> None:
        self.write(record(output, self.config))

    def compared(self, comparison: Comparison) -> None:
        self.write(comparison_record(comparison, self.config))

    def finished(self, outputs: Sequence[RequestOutput], seconds: float) -> None:
        """Every text has its own line."""

    def all_compared(self, comparisons: Sequence[Comparison]) -> None:
        """Every text has its own line."""

    @staticmethod
    def write(members: dict[str, Any]) -> None:
        print(json.dumps(members, ensure_ascii=False), flush=True)


class ScreenReporter:
    """Text as it comes, accepted draft tokens in their drafter's colour, and a line of figures below it."""

    def __init__(self, console: Console, tokenizer, config: SpeculationConfig):
        self.console, self.tokenizer, self.config = console, tokenizer, config
        self.colours = dict(zip(sorted({*BUILT_IN, *registry}), cycle(PALETTE), strict=False))
        self.runs: SourceRuns | None = None  # of the text being shown; none between texts

    def token(self, event: TokenEvent, heading: str) -> None:
        if self.runs is None:
            self.runs = SourceRuns(Detokenizer(self.tokenizer))
            if heading:
                self.console.print(Text(heading, style="bold"), soft_wrap=True)
        for text, source in self.runs.split(event):
            self.console.out(text, style=self.colours.get(source), highlight=False, end="")
        if event.finish_reason:
            self.console.out("")
            self.runs = None

    def output(self, output: RequestOutput) -> None:
        self.line(summary(output, self.config.rejection_sample_method, self.colours))

    def compared(self, comparison: Comparison) -> None:
        self.line(summary(comparison.plain, OFF.rejection_sample_method, self.colours))
        self.line(summary(comparison.speculative, self.config.rejection_sample_method, self.colours))
        self.line(verdict(comparison, self.config))

    def finished(self, outputs: Sequence[RequestOutput], seconds: float) -> None:
        self.line(total(outputs, seconds))

    def all_compared(self, comparisons: Sequence[Comparison]) -> None:
        self.line(total_comparison(comparisons))

    def line(self, text: Text) -> None:
        text.stylize_before("dim")
        self.console.print(text, soft_wrap=True, highlight=False)
