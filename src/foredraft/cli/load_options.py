"""Which model the command line loads, and how."""

import sys
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass

from huggingface_hub.utils import disable_progress_bars
from rich.console import Console
from transformers.utils import logging

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.scheduler import MAX_STEP_ROWS, PREFILL_ROWS


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadOptions:
    """Which model runs where.

    Attributes:
        model: Target: a folder, a hub id or an embedded name.
        dtype: Of weights and cache: auto (what is fast on the path that runs it), fp32, bf16, fp16, or int8: int8
            weights, bf16 cache.
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads; torch chooses when none are given.
        native: Kernels of the native CPU path: auto (the best here), off, or one of amx-bf16, avx512-bf16, avx512-vnni,
            avx512, avx2-vnni, avx2 and portable; when not given the environment's FOREDRAFT_NATIVE, else auto.
        cache_tokens: Tokens the cache holds; when not given it is sized from the context and free memory.
        max_batch: Most requests that run at once.
        draft_rows: Most draft nodes of one step over all requests, where drafter auto chooses.
        step_rows: Most tokens a step computes besides drafts.
        prefill_rows: Most prompt tokens of a step while other requests write.
        no_prefix_cache: Compute every prompt from its first token, even one that begins as an earlier text did.
    """

    model: str = "tiny"
    dtype: str = "auto"
    device: str = "auto"
    threads: int | None = None
    native: str | None = None
    cache_tokens: int | None = None
    max_batch: int = 8
    draft_rows: int = MAX_STEP_ROWS
    step_rows: int = MAX_STEP_ROWS
    prefill_rows: int = PREFILL_ROWS
    no_prefix_cache: bool = False


BATCHING = ("max_batch", "draft_rows", "step_rows", "prefill_rows", "no_prefix_cache")  # what one text has no use for


def load_engine(options: LoadOptions, speculation: SpeculationConfig) -> Engine:
    """An engine over the target and the drafter asked for. Raises `UserError` kinds."""
    with loading(options.model):
        chosen = asdict(options)
        cached = not chosen.pop("no_prefix_cache")
        engine = Engine.from_pretrained(**chosen, prefix_cache=cached, speculation=speculation)
        engine.know_costs([speculation] if speculation.adaptive else [])  # the first text need not wait for it
        return engine


def loading(name: str) -> AbstractContextManager:
    """Says on a terminal's standard error that a model is being loaded; keeps the libraries' own remarks away."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    warnings.simplefilter("ignore")
    return Console(stderr=True).status(f"loading {name}") if sys.stderr.isatty() else nullcontext()
