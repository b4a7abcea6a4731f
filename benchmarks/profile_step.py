"""Where a decoding step's time goes, part by part, for plain decoding and each drafter.

    python benchmarks/profile_step.py --target tiny --draft-model tiny-draft

Parts are timed by wrapping the engine's own functions; a part's time leaves out the parts inside it. `outside` is the
share of a step that no model forward takes: Python and bookkeeping, to be held at 15 % or less.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from time import perf_counter
from unittest.mock import patch

from contestants import configs_for
from cyclopts import App
from rich.console import Console
from rich.table import Table
from workloads import collect

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.engine import step
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool

STEP, DRAFT_FORWARD, TARGET_FORWARD = "rest", "draft forward", "target forward"
FORWARDS = (DRAFT_FORWARD, TARGET_FORWARD)
PARTS = {
    "draft": (step, "draft"),
    "plan": (step, "plan_of"),
    "verify": (step, "verify"),
    "slots": (SlotPool, "keep"),
}
GOAL = 0.15
app = App(help=__doc__)


class Stopwatch:
    """Times nested parts; what an inner part takes is not counted for the outer one.

    Attributes:
        steps: Microseconds by part, one entry a step.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self.inner: list[float] = []  # seconds spent inside each open part's own parts

    @contextmanager
    def timing(self, part: str) -> Iterator[None]:
        if part == STEP:
            self.steps.append(defaultdict(float))
        self.inner.append(0.0)
        start = perf_counter()
        yield
        seconds = perf_counter() - start
        self.steps[-1][part] += (seconds - self.inner.pop()) * 1e6
        if self.inner:
            self.inner[-1] += seconds

    def wrapped(self, function, part_of):
        """`function` with its calls timed under the name `part_of` gives them from the first argument."""

        def timed(*arguments, **options):
            with self.timing(part_of(arguments[0])):
                return function(*arguments, **options)

        return timed

    @contextmanager
    def watching(self, engine: Engine) -> Iterator[None]:
        """Time every step of `engine` while the context is open."""

        def forward_of(model: PackedModel) -> str:
            return TARGET_FORWARD if model is engine.target.model else DRAFT_FORWARD

        with ExitStack() as patches:
            for part, (owner, name) in PARTS.items():
                wrapped = self.wrapped(getattr(owner, name), lambda _, part=part: part)
                patches.enter_context(patch.object(owner, name, wrapped))
            patches.enter_context(patch.object(PackedModel, "run_with", self.wrapped(PackedModel.run_with, forward_of)))
            patches.enter_context(patch.object(Engine, "step", self.wrapped(Engine.step, lambda _: STEP)))
            yield


@app.default
def main(
    *,
    target: str = "tiny",
    draft_model: str = "tiny-draft",
    max_new_tokens: int = 128,
    prompts: int = 4,
    threads: int = 2,
    dtype: str = "auto",
) -> None:
    """Profile decoding steps, prefill left out, and print the median of each part."""
    place = {"dtype": dtype, "device": "cpu", "threads": threads}
    engine = Engine.from_pretrained(target, **place, max_batch=1, prefix_cache=False, speculation=OFF)
    texts = [its[0] for its in collect([], None).values()][:prompts]
    sampling = SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    shown = Table(title=f"{target}, {engine.target.model.dtype}, {threads} threads: microseconds a step, medians")
    columns = ["step", *PARTS, STEP, *FORWARDS, "outside", "tau"]
    for column in ("contestant", *columns):
        shown.add_column(column, justify="left" if column == "contestant" else "right")
    for name, config in configs_for(engine, draft_model)[0].items():
        shown.add_row(name, *cells(*profiled(engine, texts, sampling, config)))
    Console(width=None if Console().is_terminal else 150).print(shown)


def profiled(engine: Engine, texts: list[str], sampling: SamplingParams, config: SpeculationConfig):
    """Steps after each text's first, as parts, and tau; the first text is run once before for warmth."""
    engine.generate(texts[:1], sampling, config)
    steps, taus = [], []
    for text in texts:
        watch = Stopwatch()
        with watch.watching(engine):
            output = engine.generate([text], sampling, config)[0]
        steps += watch.steps[1:]
        taus.append(output.statistics.tau)
    return steps, sum(taus) / len(taus)


def cells(steps: list[dict[str, float]], tau: float) -> list[str]:
    totals = [sum(parts.values()) for parts in steps]
    outside = 1 - sum(parts[name] for parts in steps for name in FORWARDS) / sum(totals)
    medians = [median(parts[name] for parts in steps) for name in (*PARTS, STEP, *FORWARDS)]
    mark = "" if outside <= GOAL else " !"
    return [f"{median(totals):.0f}", *(f"{value:.0f}" for value in medians), f"{outside:.1%}{mark}", f"{tau:.2f}"]


if __name__ == "__main__":
    app()
