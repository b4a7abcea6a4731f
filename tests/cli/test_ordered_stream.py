import pytest

from foredraft.cli.ordered_stream import in_order
from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.output import RequestOutput, TokenEvent


def event(index: int, sample: int = 0) -> TokenEvent:
    return TokenEvent(index=index, sample=sample, tokens=[1], sources=[None], text="x", finish_reason=None)


def output(index: int, sample: int = 0) -> RequestOutput:
    return RequestOutput(
        index=index,
        sample=sample,
        prompt_token_ids=[1],
        token_ids=[1],
        text="x",
        finish_reason="stop",
        seed=0,
        drafter="none",
        lossless=True,
        sources=[None],
        logprobs=None,
        statistics=SpeculationStatistics(),
        seconds=1.0,
        first_token_seconds=1.0,
    )


PLACES = [(0, 0), (0, 1), (1, 0)]
EACH_PLACE = [(make, *place) for place in PLACES for make in (event, event, output)]


@pytest.mark.parametrize(
    "arrival",
    [
        [0, 1, 2, 3, 4, 5, 6, 7, 8],
        [6, 7, 8, 3, 4, 5, 0, 1, 2],
        [0, 3, 6, 1, 4, 7, 2, 5, 8],
        [3, 4, 5, 0, 6, 7, 8, 1, 2],
    ],
)
def test_what_comes_early_waits_for_its_turn(arrival):
    items = [make(*place) for make, *place in EACH_PLACE]
    shown = list(in_order([items[i] for i in arrival], PLACES))
    assert [(type(item), item.index, item.sample) for item in shown] == [(type(i), i.index, i.sample) for i in items]


def test_the_first_text_is_shown_at_once():
    stream = in_order(iter([event(0), event(1)]), [(0, 0), (1, 0)])
    assert next(stream).index == 0
