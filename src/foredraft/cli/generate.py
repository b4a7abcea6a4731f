"""`foredraft generate`: write text and show what speculation gained."""

from pathlib import Path
from time import perf_counter
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from foredraft.cli.comparison import Comparison, compare, seeded, warm_up, way_name
from foredraft.cli.flags import flags_of, given
from foredraft.cli.load_options import LoadOptions, load_engine
from foredraft.cli.ordered_stream import stream_in_order
from foredraft.cli.prompts import read_prompts
from foredraft.cli.reporters import JsonReporter, Reporter, ScreenReporter
from foredraft.cli.speculation_flags import SpeculationFlags, speculation_from
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent

SamplingFlags = flags_of(SamplingParams)
LoadFlags = flags_of(LoadOptions)


def generate(
    prompt: str | None = None,
    /,
    *,
    stdin: Annotated[bool, Parameter(name="-", show_default=False)] = False,
    prompts: Path | None = None,
    chat: Annotated[bool, Parameter(show_default=False)] = False,
    both_ways: Annotated[bool, Parameter(name="--compare", show_default=False)] = False,
    as_json: Annotated[bool, Parameter(name="--json", show_default=False)] = False,
    speculative_config: str | None = None,
    load: Annotated[LoadFlags, Parameter(name="*", group="Model")] = LoadFlags(),  # noqa: B008
    sampling: Annotated[SamplingFlags, Parameter(name="*", group="Sampling")] = SamplingFlags(),  # noqa: B008
    speculation: Annotated[SpeculationFlags, Parameter(name="*", group="Speculation")] = SpeculationFlags(),  # noqa: B008
) -> None:
    """Write on from a prompt, show which tokens were drafted, and how fast it went.

    Args:
        prompt: Text to write on from.
        stdin: Read the prompt from standard input.
        prompts: File of prompts, one a line: plain text, {"prompt": ...} objects or Spec-Bench questions.
        chat: Give each prompt as a user's message in the model's chat template.
        both_ways: Write without speculation too; print both, the ratio, and whether the tokens are identical.
        as_json: Print one JSON object a text, one a line, and nothing else.
        speculative_config: The keys of all flags of speculation as one JSON object; flags beside it override it.
    """
    texts = read_prompts(prompt, from_stdin=stdin, file=prompts)
    params = SamplingParams(**given(sampling))
    engine = load_engine(LoadOptions(**given(load)), speculation_from(speculative_config, speculation))
    encoded = [encode(engine, text, chat=chat) for text in texts]
    (write_both_ways if both_ways else write)(engine, encoded, params, reporter_for(engine, as_json=as_json))


def encode(engine: Engine, text: str, *, chat: bool) -> list[int]:
    """Token ids of a prompt. Raises `PromptError`."""
    return engine.encode(engine.chat([{"role": "user", "content": text}]) if chat else text)


def reporter_for(engine: Engine, *, as_json: bool) -> Reporter:
    if as_json:
        return JsonReporter(engine.speculation)
    return ScreenReporter(Console(), engine.target.tokenizer, engine.speculation)


def write(engine: Engine, prompts: list[list[int]], params: SamplingParams, reporter: Reporter) -> None:
    """Write all prompts together, as the engine admits them."""
    start, outputs, several = perf_counter(), [], len(prompts) * params.n > 1
    for item in stream_in_order(engine, prompts, params, engine.speculation):
        if isinstance(item, RequestOutput):
            outputs.append(item)
            reporter.output(item)
        else:
            reporter.token(item, place(item) if several else "")
    if several:
        reporter.finished(outputs, perf_counter() - start)


def write_both_ways(engine: Engine, prompts: list[list[int]], params: SamplingParams, reporter: Reporter) -> None:
    """Write as many prompts at a time as run together, both ways, taking turns in which way goes first."""
    params, size, several = seeded(params), engine.scheduler.max_batch, len(prompts) * params.n > 1

    def show(event: TokenEvent, way: SpeculationConfig) -> None:
        reporter.token(event, f"{place(event)}, {way_name(way)}" if several else way_name(way))

    warm_up(engine, prompts[0], engine.speculation)
    comparisons: list[Comparison] = []
    for turn, start in enumerate(range(0, len(prompts), size)):
        group, plain_first = prompts[start : start + size], turn % 2 == 0
        pairs = compare(
            engine, group, params, engine.speculation, plain_first=plain_first, show=show, first_index=start
        )
        for pair in pairs:
            reporter.compared(pair)
        comparisons += pairs
    if several:
        reporter.all_compared(comparisons)


def place(event: TokenEvent) -> str:
    return f"prompt {event.index}" + (f", continuation {event.sample}" if event.sample else "")
