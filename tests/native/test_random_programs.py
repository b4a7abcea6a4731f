"""Random shapes, masks and slots against the plain interpreter, operation by operation through the features."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_decoder import KERNELS, VOCABULARY, Given, Sizes, native_decoder, reference_decoder

SLOTS = 256
CLOSE = {"fp32": 2e-5, "bf16": 0.06}

sizes = st.builds(
    Sizes,
    hidden=st.sampled_from([16, 34, 48, 96, 130]),
    inner=st.sampled_from([6, 32, 70, 144]),
    heads=st.sampled_from([3, 6, 12]),
    kv_heads=st.sampled_from([1, 3]),
    head_size=st.sampled_from([4, 10, 16, 24, 64, 80]),
    rotated=st.sampled_from([2, 4]),
    layers=st.integers(1, 2),
    window=st.sampled_from([0, 1, 5]),
    softcap=st.sampled_from([0.0, 4.0]),
    activation=st.sampled_from(["silu", "gelu", "gelu_tanh"]),
    wide=st.booleans(),
    head_norms=st.booleans(),
    seed=st.integers(0, 100),
)


@st.composite
def packs(draw) -> list[Given]:
    """Two forwards over several requests: their contexts, then rows with random ancestors in scattered slots."""
    slots = draw(st.permutations(range(SLOTS)))
    contexts = draw(st.lists(st.integers(1, 20), min_size=1, max_size=4))
    tokens = st.integers(0, VOCABULARY - 1)
    first, second = Given([], [], [], []), Given([], [], [], [], features=[0, -1])
    used = 0
    for context in contexts:
        mine = list(slots[used : used + context])
        start = len(first.tokens)
        first.segments.append((start, context, 0, -1, torch.tensor(mine), None))
        first.tokens += draw(st.lists(tokens, min_size=context, max_size=context))
        first.positions += range(context)
        first.write += mine
        rows = draw(st.integers(1, 20))
        own = list(slots[used + context : used + context + rows])
        parents = [draw(st.integers(-1, row - 1)) for row in range(rows)]
        parents[0] = -1
        seen, depths = torch.eye(rows, dtype=torch.bool), []
        for row, parent in enumerate(parents):
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if parent >= 0:
                seen[row] |= seen[parent]
        second.segments.append((len(second.tokens), rows, context, -1, torch.tensor(mine + own), seen))
        second.tokens += draw(st.lists(tokens, min_size=rows, max_size=rows))
        second.positions += [context + depth for depth in depths]
        second.write += own
        used += context + rows
    second.wanted = sorted(draw(st.sets(st.integers(0, len(second.tokens) - 1))))
    return [first, second]


def off(got: torch.Tensor, wanted: torch.Tensor) -> float:
    if not wanted.numel():
        return 0.0
    return float((got.float() - wanted.float()).norm() / wanted.float().norm().clamp_min(1e-6))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kernels", KERNELS)
@settings(max_examples=12, deadline=None)
@given(sizes=sizes, forwards=packs())
def test_random_programs(kernels, dtype, sizes, forwards):
    native, reference = native_decoder(kernels, dtype, sizes), reference_decoder(dtype, sizes)
    for forward in forwards:
        got, states = native.run(forward)
        wanted, wanted_states = reference.run(forward)
        assert off(got, wanted) <= CLOSE[dtype]
        for own, other in zip(states, wanted_states, strict=True):
            assert off(own, other) <= CLOSE[dtype]
    for layer in range(sizes.layers):
        assert off(native.keys[layer], reference.keys[layer]) <= CLOSE[dtype]
        assert off(native.values[layer], reference.values[layer]) <= CLOSE[dtype]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("skip", [(0,), (1, 2), (0, 1, 2, 3)])
def test_sections_left_out(kernels, skip):
    forward = Given([3, 5, 9], [0, 1, 2], [4, 5, 6], [(0, 3, 0, 4, None, None)], features=[2])
    got, [state] = native_decoder(kernels, "fp32").run(forward, skip)
    wanted, [wanted_state] = reference_decoder("fp32").run(forward, skip)
    assert off(got, wanted) < 1e-5 and off(state, wanted_state) < 1e-5


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_int8_weights(kernels, dtype):
    sizes = Sizes(hidden=128, weights="int8")
    forward = Given([3, 5, 9, 1], [0, 1, 2, 3], [4, 5, 6, 7], [(0, 4, 0, 4, None, None)])
    assert (
        off(native_decoder(kernels, dtype, sizes).run(forward)[0], reference_decoder(dtype, sizes).run(forward)[0])
        <= (CLOSE[dtype])
    )
