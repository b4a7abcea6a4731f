"""The same text written with and without speculation."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from foredraft.cli.ordered_stream import stream_in_order
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent

WARM_UP_TOKENS = 8
WARM_UP_PROMPT = 64

Show = Callable[[TokenEvent, SpeculationConfig], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One continuation written twice from one seed."""

    speculative: RequestOutput
    plain: RequestOutput

    @property
    def ratio(self) -> float:
        """Speed with speculation over speed without, 0 where there was nothing to time."""
        plain = self.plain.tokens_per_second
        return self.speculative.tokens_per_second / plain if plain else 0.0

    @property
    def identical(self) -> bool:
        return self.speculative.token_ids == self.plain.token_ids

    @property
    def first_difference(self) -> int | None:
        """Output position of the first token that differs, none where the texts are the same."""
        if self.identical:
            return None
        pairs = zip(self.speculative.token_ids, self.plain.token_ids, strict=False)
        shorter = min(len(self.speculative.token_ids), len(self.plain.token_ids))
        return next((position for position, (ours, theirs) in enumerate(pairs) if ours != theirs), shorter)


def way_name(way: SpeculationConfig) -> str:
    return "plain decoding" if way is OFF else f"speculation: {way.method}"


def seeded(params: SamplingParams) -> SamplingParams:
    """`params` with a seed, so that both ways of writing use the same one."""
    return params if params.seed is not None else replace(params, seed=secrets.randbits(62))


def warm_up(engine: Engine, prompt: list[int], speculation: SpeculationConfig) -> None:
    """A few steps both ways. The prompt is read backwards: a drafter that learns must not have seen the answer."""
    start = prompt[:WARM_UP_PROMPT][::-1]
    for way in (OFF, speculation):
        engine.generate([start], SamplingParams(max_new_tokens=WARM_UP_TOKENS, ignore_eos=True), way)


def compare(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    speculation: SpeculationConfig,
    *,
    plain_first: bool,
    show: Show,
    first_index: int = 0,
) -> list[Comparison]:
    """Write all prompts at once one way, then the other; `params` must hold a seed."""
    assert params.seed is not None
    written = {}
    for way in [OFF, speculation] if plain_first else [speculation, OFF]:
        outputs = []
        with engine.cold():
            for item in stream_in_order(engine, prompts, params, way, first_index=first_index):
                if isinstance(item, RequestOutput):
                    outputs.append(item)
                else:
                    show(item, way)
        written[way is OFF] = outputs
    pairs = zip(written[False], written[True], strict=True)
    return [Comparison(speculative=speculative, plain=plain) for speculative, plain in pairs]
