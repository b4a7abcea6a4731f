"""Answers rewritten by the target: a drafter must guess the target's words, not those of the data.

Kept on disk as JSON Lines that `read_samples` reads, one answer a line, and a file that says how they were made.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foredraft.core.errors import PromptError, require
from foredraft.core.sampling_params import SamplingParams, whole
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput
from foredraft.model.target import ModelTarget
from foredraft.sampling.noise import mixed_int
from foredraft.training.answer_cache import AnswerCache
from foredraft.training.samples import Sample
from foredraft.training.target_network import fingerprint

WINDOW = 1024  # prompts queued in the engine at once
RULE = "match"  # the acceptance rule whose text is a function of the seed

Progress = Callable[[int, int, int], None]  # answers done, answers in all, tokens written now


@dataclass(frozen=True, kw_only=True, slots=True)
class Answers:
    """What `regenerate` made.

    Attributes:
        samples: Prompts with the target's answers, in the order of the samples they come from.
        reused: Answers found in the cache.
        tokens: Written now.
        left_out: Samples whose prompt fills the target's context.
    """

    samples: list[Sample]
    reused: int
    tokens: int
    left_out: int


def regenerate(
    engine: Engine,
    samples: Sequence[Sample],
    cache_path: Path | str,
    *,
    temperature: float,
    seed: int,
    max_new_tokens: int,
    text_prefix_tokens: int = 32,
    progress: Progress | None = None,
) -> Answers:
    """Let the target answer every sample's prompt anew: what stands before its last written run.

    Of a text that is written as a whole the first `text_prefix_tokens` are the prompt. Answers are kept in `cache_path`
    as they come, so that a run that was stopped goes on there. An answer is a function of `seed`, the sample's place,
    its prompt and the target, whatever ran beside it and however it was drafted.

    Raises `DataError` where the cache was made otherwise, is damaged or cannot be written; `ConfigError` for an option.
    """
    rule = engine.speculation.rejection_sample_method
    require(rule == RULE, f"rejection_sample_method is {rule!r}; answers that can be made again need {RULE!r}")
    require(isinstance(engine.target, ModelTarget), f"{engine.target.name} is no loaded model; it cannot answer")
    whole("seed", seed, 0, 2**63 - 1)
    whole("text_prefix_tokens", text_prefix_tokens, 1)
    params = SamplingParams(temperature=temperature, max_new_tokens=max_new_tokens)
    prompts = {place: prompt_of(sample, text_prefix_tokens) for place, sample in enumerate(samples)}
    fitting = {place: prompt for place, prompt in prompts.items() if len(prompt) < engine.target.context_length}
    require(bool(fitting), f"no prompt fits the context of {engine.target.context_length} tokens", PromptError)
    settings = settings_of(engine.target, fitting, params, seed)
    cache = AnswerCache(path=Path(cache_path), prompts=fitting, settings=settings)
    reused, tokens = len(cache.lines), 0
    with cache.writing():
        for output, place in answered(engine, cache.missing(), params, seed):
            cache.add(place, output)
            tokens += len(output.token_ids)
            if progress:
                progress(len(cache.lines), len(fitting), tokens)
    cache.put_in_order()
    return Answers(samples=cache.samples(), reused=reused, tokens=tokens, left_out=len(prompts) - len(fitting))


def prompt_of(sample: Sample, text_prefix_tokens: int) -> list[int]:
    """Tokens before the sample's last written run; the beginning of a text that is written as a whole."""
    written = list(sample.written)
    last = len(written) - written[::-1].index(True)
    start = next((place + 1 for place in reversed(range(last)) if not written[place]), 0)
    return list(sample.tokens[: start or min(text_prefix_tokens, len(sample) - 1)])


def seed_of(seed: int, place: int) -> int:
    """The seed of a sample's answer."""
    return mixed_int(mixed_int(seed) + place) >> 1


def answered(
    engine: Engine, prompts: dict[int, list[int]], params: SamplingParams, seed: int
) -> Iterator[tuple[RequestOutput, int]]:
    """Outputs as they finish, each with the place of its sample."""
    places = list(prompts)
    for first in range(0, len(places), WINDOW):
        window = places[first : first + WINDOW]
        own = [replace(params, seed=seed_of(seed, place)) for place in window]
        for event in engine.stream([prompts[place] for place in window], own):
            if isinstance(event, RequestOutput):
                yield event, window[event.index]


def settings_of(
    target: ModelTarget, prompts: dict[int, list[int]], params: SamplingParams, seed: int
) -> dict[str, Any]:
    """What the answers depend on."""
    return {
        "target": target.name,
        "weights": fingerprint(target.path, target.model.module.config),
        "dtype": str(target.model.dtype),
        "temperature": float(params.temperature),
        "seed": seed,
        "max_new_tokens": params.max_new_tokens,
        "prompts": hashlib.sha256(json.dumps(list(prompts.items())).encode()).hexdigest(),
    }
