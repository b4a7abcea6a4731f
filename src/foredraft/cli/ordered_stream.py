"""A stream of several texts, told one text after the other."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent

Item = TokenEvent | RequestOutput


def stream_in_order(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    speculation: SpeculationConfig,
    *,
    first_index: int = 0,
) -> Iterator[Item]:
    """As `Engine.stream`, with each continuation's items together; indices count from `first_index`."""
    places = product(range(len(prompts)), range(params.n))
    for item in in_order(engine.stream(prompts, params, speculation), places):
        yield replace(item, index=item.index + first_index)


def in_order(stream: Iterable[Item], places: Iterable[tuple[int, int]]) -> Iterator[Item]:
    """The items of each of `places`, pairs of index and sample, in the order given; what comes early waits."""
    turns, waiting = deque(places), {}
    for item in stream:
        waiting.setdefault((item.index, item.sample), deque()).append(item)
        while turns and (queue := waiting.get(turns[0])):
            yield (shown := queue.popleft())
            if isinstance(shown, RequestOutput):
                turns.popleft()
