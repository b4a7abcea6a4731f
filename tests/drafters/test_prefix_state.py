"""What a drafter knows of positions is cut and put together as a list of single positions would be."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import Observation
from foredraft.drafters.feature_store import FeatureStore
from foredraft.drafters.prefix_state import PrefixState, joined

FILLED = "filled"


def state_of(positions: list) -> PrefixState:
    """Positions are `FILLED` or the number that waits; every feature comes as two columns, in stretches of two rows."""
    waiting = [number for number in positions if number != FILLED]
    rows = torch.tensor(waiting, dtype=torch.float32)[:, None]
    stretches = tuple((rows[i : i + 2], -rows[i : i + 2]) for i in range(0, len(waiting), 2))
    return PrefixState(len(positions) - len(waiting), len(positions), stretches)


def positions_of(state: PrefixState) -> list:
    for columns in state.features:
        assert torch.equal(columns[0], -columns[1])
    waiting = [number for columns in state.features for number in columns[0][:, 0].int().tolist()]
    assert len(waiting) == state.known - state.filled
    return [FILLED] * state.filled + waiting


@st.composite
def known(draw) -> list:
    filled, waiting = draw(st.integers(0, 5)), draw(st.integers(0, 7))
    return [FILLED] * filled + list(range(100, 100 + waiting))


@given(known(), st.integers(0, 12), st.integers(0, 12))
def test_a_part_is_those_positions(positions, start, length):
    assert positions_of(state_of(positions).part(start, start + length)) == positions[start : start + length]
    assert positions_of(state_of(positions).part(start, start + length).owned()) == positions[start : start + length]


@given(known(), st.lists(st.integers(0, 12), max_size=4))
def test_parts_put_together_are_the_whole(positions, cuts):
    edges = [0, *sorted(cuts), 14]
    parts = [(state_of(positions).part(a, b), b - a) for a, b in zip(edges, edges[1:], strict=False)]
    assert positions_of(joined(parts)) == positions


def test_what_cannot_follow_is_left_out():
    filled, waits, short = state_of([FILLED] * 3), state_of([1, 2]), state_of([FILLED])
    assert positions_of(joined([(filled, 3), (waits, 2), (filled, 3)])) == [FILLED] * 3 + [1, 2]
    assert positions_of(joined([(filled, 3), (short, 2), (filled, 3)])) == [FILLED] * 4
    assert positions_of(joined([(waits, 2), (state_of([3]), 4)])) == [1, 2, 3]


def test_a_part_of_its_own_keeps_nothing_else_alive():
    rows = torch.zeros(1000, 4)
    state = PrefixState(0, 1000, ((rows,),))
    assert state.part(0, 1000).owned().features[0][0].data_ptr() == rows.data_ptr()
    [(column,)] = state.part(3, 5).owned().features
    assert column.untyped_storage().nbytes() == column.nbytes


def observed(request: Request, first: int, rows: Tensor) -> Observation:
    return Observation(
        request=request, table=None, first=first, tree=None, verdict=None, committed=[], features=(rows,)
    )


def test_a_store_hands_over_what_waits():
    first, second = (Request(prompt=[1] * 9, params=SamplingParams(), speculation=OFF, seed=0) for _ in range(2))
    store, rows = FeatureStore(), torch.arange(6.0)[:, None]
    store.store(observed(first, 0, rows[:4]))
    store.store(observed(first, 4, rows[4:]))
    assert store.take(first, 2).tolist() == [[0.0], [1.0]]
    state = store.leave(first, 2, 5)
    assert (state.filled, state.known) == (2, 5) and state.features[0][0][:, 0].tolist() == [2.0, 3.0, 4.0]
    assert store.leave(first, 2, 1).known == 1 and not store.leave(first, 2, 1).features
    assert store.take(first, 4).tolist() == [[2.0], [3.0], [4.0], [5.0]]
    store.resume(second, state)
    store.store(observed(second, 5, rows[:3]))
    assert store.ready(second) and store.take(second, 6)[:, 0].tolist() == [2.0, 3.0, 4.0, 0.0, 1.0, 2.0]
    store.resume(second, PrefixState(8, 8))
    assert not store.ready(second)  # the pair before the root has been run, and its output is gone
    store.close(first), store.close(second)
    assert not store.known and not store.waiting
