"""`foredraft demo`: four built-in prompts written both ways, and a table of what speculation gained."""

from dataclasses import replace
from typing import Annotated

from cyclopts import Parameter
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from foredraft.checkpoints.head_checkpoint import default_head
from foredraft.cli.comparison import Comparison, compare, seeded, warm_up, way_name
from foredraft.cli.demo_prompts import DEMO_PROMPTS, DemoPrompt
from foredraft.cli.figures import method_name
from foredraft.cli.flags import flags_of, given
from foredraft.cli.load_options import BATCHING, LoadOptions, load_engine
from foredraft.cli.reporters import ScreenReporter
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.output import TokenEvent
from foredraft.model.native_decoder import NativeDecoder

SamplingFlags = flags_of(SamplingParams, omit=("n",))
LoadFlags = flags_of(LoadOptions, omit=BATCHING)
EXACT = {"dtype": "fp32"}  # off the native path a near-tie in 16 bits may turn out otherwise among several rows
SHORT = {"max_new_tokens": 128}


def demo(
    *,
    draft_model: str | None = None,
    load: Annotated[LoadFlags, Parameter(name="*", group="Model")] = LoadFlags(),  # noqa: B008
    sampling: Annotated[SamplingFlags, Parameter(name="*", group="Sampling")] = SamplingFlags(),  # noqa: B008
) -> None:
    """Write code, JSON, an answer with a quotation and a story, with and without speculation, and compare.

    Runs in fp32 where the native path cannot take the model, unless told otherwise: so the texts are the same token for
    token.

    Args:
        draft_model: Drafts in place of the embedded tiny-draft, for a target of another vocabulary.
    """
    params = seeded(SamplingParams(**SHORT | given(sampling)))
    engine, console = exact_engine(given(load)), Console()
    rows = []
    for turn, prompt in enumerate(DEMO_PROMPTS):
        config = drafting(prompt, engine.target.name, draft_model)
        console.rule(prompt.title, align="left")
        console.out(prompt.text, style="dim", highlight=False)
        reporter = ScreenReporter(console, engine.target.tokenizer, config)
        comparison = both_ways(engine, encode(engine, prompt), params, config, reporter, plain_first=turn % 2 == 0)
        reporter.compared(comparison)
        rows.append((prompt.title, config, comparison))
    console.print(table_of(rows))


def exact_engine(asked: dict[str, object]) -> Engine:
    """The engine that was asked for, in a dtype in which speculation changes no token where none was named."""
    engine = load_engine(LoadOptions(**asked), OFF)
    if "dtype" in asked or isinstance(engine.target.model.decoder, NativeDecoder):
        return engine
    return load_engine(LoadOptions(**EXACT | asked), OFF)


def drafting(prompt: DemoPrompt, target: str, draft_model: str | None) -> SpeculationConfig:
    """How a prompt is drafted: by a trained head where the target has one here, unless a draft model is named."""
    config, trained = prompt.speculation, prompt.trained
    if draft_model:
        return replace(config, model=draft_model) if config.model else config
    return trained if trained and default_head(target, trained.method) else config


def encode(engine: Engine, prompt: DemoPrompt) -> list[int]:
    """Token ids of a demo prompt; a model without a chat template gets it as plain text."""
    if prompt.chat and engine.target.tokenizer.chat_template:
        return engine.encode(engine.chat([{"role": "user", "content": prompt.text}]))
    return engine.encode(prompt.text)


def both_ways(
    engine: Engine,
    prompt: list[int],
    params: SamplingParams,
    config: SpeculationConfig,
    reporter: ScreenReporter,
    *,
    plain_first: bool,
) -> Comparison:
    def show(event: TokenEvent, way: SpeculationConfig) -> None:
        reporter.token(event, way_name(way))

    warm_up(engine, prompt, config)
    return compare(engine, [prompt], params, config, plain_first=plain_first, show=show)[0]


def table_of(rows: list[tuple[str, SpeculationConfig, Comparison]]) -> Table:
    table = Table("prompt", "drafter", box=SIMPLE, padding=(0, 1, 0, 0), title="tokens a second", title_justify="left")
    for heading in ("plain", "drafted", "ratio", "tau", "accepted", "identical"):
        table.add_column(heading, justify="right", no_wrap=True)
    for title, config, pair in rows:
        ours, statistics = pair.speculative, pair.speculative.statistics
        table.add_row(
            title,
            method_name(ours, config.rejection_sample_method),
            f"{pair.plain.tokens_per_second:.1f}",
            f"{ours.tokens_per_second:.1f}",
            f"{pair.ratio:.2f}",
            f"{statistics.tau:.2f}",
            f"{statistics.acceptance_rate:.0%}",
            "yes" if pair.identical else "no",
        )
    return table
