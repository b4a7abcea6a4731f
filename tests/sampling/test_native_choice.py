"""The native extension gives the noise and the tokens that torch gives, whatever the logits are."""

import subprocess
import sys
from collections.abc import Iterator
from math import inf, nan

import pytest
import torch
from hashes_for_tests import key_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from foredraft.sampling import noise
from foredraft.sampling.noise import gumbel_rows

native = noise.native
if native is None:
    pytest.skip("foredraft_native is not installed or switched off", allow_module_level=True)

KERNELS = native.choice_kernels()
DTYPES = [torch.float32, torch.bfloat16]
WIDTHS = [1, 2, 127, 128, 129, 300, 8192]
kernels = pytest.mark.parametrize("kernel", KERNELS)
odd_values = pytest.mark.parametrize(
    "values", [[0.0], [0.0, -0.0], [-inf], [-inf, 2.0], [inf, 0.0], [inf, -inf], [inf, nan, 1.0], [1e-45, 0.0, -1e-40]]
)
dtypes = pytest.mark.parametrize("dtype", DTYPES)
keys_of_rows = st.integers(-(2**63), 2**63 - 1)


def some_keys(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(2**63), 2**63 - 1, (count,), generator=generator).tolist()


def some_logits(rows: int, width: int, spread: float, seed: int = 0) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * spread


def torch_noise(keys: list[int], width: int) -> Tensor:
    steps = torch.arange(width) * noise.signed(noise.INCREMENT)
    return noise.noise_of(noise.mixed(torch.tensor(keys)[:, None] + steps))


def torch_choice(logits: Tensor, divisors: list[float] | None, noise_rows: Tensor) -> list[int]:
    rows = logits.float()
    if divisors is not None:
        rows = rows / torch.tensor(divisors)[:, None]
    return (rows + noise_rows).argmax(-1).tolist()


def assert_chosen(logits: Tensor, divisors: list[float] | None, keys: list[int], kernel: str = "") -> None:
    expected = torch_choice(logits, divisors, gumbel_rows(torch.tensor(keys), logits.shape[-1]))
    assert native.choose(logits, divisors, keys, kernel=kernel) == expected


# ---------------------------------------------------------------------------------------------------- noise


@pytest.mark.parametrize("width", [*WIDTHS, 128256])
def test_noise_is_that_of_torch(width):
    keys = some_keys(64 if width < 10_000 else 8, seed=width)
    found, expected = gumbel_rows(torch.tensor(keys), width), torch_noise(keys, width)
    assert (found != expected).sum() <= 1  # a logarithm may be rounded the other way: it shows in about 4 of 1e9
    assert_close(found, expected, rtol=1e-6, atol=1e-15)


@kernels
def test_every_instruction_set_has_the_same_noise(kernel):
    keys = torch.tensor(some_keys(16))
    for width in WIDTHS:
        rows = torch.empty(16, width)
        native.gumbel_rows(keys, rows, kernel=kernel)
        assert torch.equal(rows, gumbel_rows(keys, width))
    tokens = torch.randint(8192, (16,))
    pairs = torch.empty(16)
    native.gumbel_pairs(keys, tokens, pairs, kernel=kernel)
    assert torch.equal(pairs, rows[torch.arange(16), tokens])


def test_noise_goes_where_it_is_asked_for_and_nowhere_else():
    room = torch.zeros(5, 40)
    native.gumbel_rows(torch.tensor([3, 4]), room[1:4:2, 7:30])
    expected = torch.zeros(5, 40)
    expected[1:4:2, 7:30] = gumbel_rows(torch.tensor([3, 4]), 23)
    assert torch.equal(room, expected)


@pytest.mark.parametrize("threads", [1, 2, 7, 100])
def test_any_number_of_threads_gives_the_same(threads):
    keys = torch.tensor(some_keys(9))
    logits = some_logits(9, 150_000, 2.0)  # long enough to do without Python's lock
    rows = torch.empty(9, 500)
    native.gumbel_rows(keys, rows, threads=threads)
    assert torch.equal(rows, gumbel_rows(keys, 500))
    assert native.choose(logits, None, keys.tolist(), threads=threads) == native.choose(logits, None, keys.tolist())
    assert native.top(logits, 3, threads=threads) == native.top(logits, 3)
    assert native.log_sum_exp(logits, threads=threads) == native.log_sum_exp(logits)
    drawn = native.drawn_top(logits, 3, None, keys.tolist())
    assert native.drawn_top(logits, 3, None, keys.tolist(), threads=threads) == drawn


# ---------------------------------------------------------------------------------------------------- tokens


@dtypes
@pytest.mark.parametrize("width", [*WIDTHS, 128256])
def test_tokens_are_those_of_torch(width, dtype):
    rows = 200 if width < 1000 else 40 if width < 10_000 else 4
    for place, spread in enumerate([0.0, 0.3, 1.0, 3.0, 10.0]):
        logits = some_logits(rows, width, spread, seed=place).to(dtype)
        assert native.choose(logits) == logits.float().argmax(-1).tolist()
        keys = some_keys(rows, seed=place)
        expected = torch_noise(keys, width)
        for divisors in (None, [0.1] * rows, [0.7 + place] * rows, [1e-20] * rows):
            assert native.choose(logits, divisors, keys) == torch_choice(logits, divisors, expected)


@kernels
@dtypes
def test_every_instruction_set_chooses_the_same(kernel, dtype):
    logits, keys = some_logits(50, 2000, 2.0).to(dtype), some_keys(50)
    divisors = [0.2 + row / 20 for row in range(50)]
    assert_chosen(logits, divisors, keys, kernel)
    assert native.choose(logits, kernel=kernel) == logits.float().argmax(-1).tolist()
    assert native.top(logits, 9, kernel=kernel) == native.top(logits, 9)
    assert native.log_sum_exp(logits, kernel=kernel) == native.log_sum_exp(logits)


@kernels
@pytest.mark.parametrize("divisor", [1.0, 0.3, 7.0, 1e-6, 1e4])
@pytest.mark.parametrize("level", [0.0, 5.0, -300.0, 1e5])
def test_all_tokens_within_a_rounding_of_each_other(kernel, divisor, level):
    """Each logit is what its noise leaves to the level, so nearly all tie: nothing may be left out too early."""
    keys = some_keys(20, seed=3)
    logits = (level - gumbel_rows(torch.tensor(keys), 4000)) * divisor
    assert_chosen(logits, [divisor] * 20, keys, kernel)


@kernels
def test_the_largest_noise_lifts_a_token_from_far_below(kernel):
    logits = torch.full((20, 2000), -25.0)
    logits[:, -1] = 0.0
    tokens = [91 * row for row in range(20)]
    keys = [key_of(noise.MASK, token) for token in tokens]
    assert native.choose(logits, None, keys, kernel=kernel) == tokens
    assert native.choose(logits * 0.1, [0.1] * 20, keys, kernel=kernel) == tokens


@kernels
@pytest.mark.parametrize("divisor", [1.0, 0.7, 0.01, 30.0])
@pytest.mark.parametrize("level", [0.0, 3.3, -40.0, 1000.0])
def test_noise_at_its_bound_ties_with_the_best(kernel, divisor, level):
    """1 - u just above a power of two, where the bound that leaves tokens out is nearest to the noise itself."""
    keys = [key_of(noise.MASK ^ 1 << bit, 3) for bit in range(40, 60)]
    noises = gumbel_rows(torch.tensor(keys), 500)
    best, tied = 400, 3
    logits = torch.full((len(keys), 500), -1e6 * divisor)
    logits[:, best] = level * divisor
    goal = logits[:, best] / divisor + noises[:, best]
    logits[:, tied] = (goal - noises[:, tied]) * divisor * (1 - 1e-6) - 1e-6 * divisor
    while (short := logits[:, tied] / divisor + noises[:, tied] < goal).any():
        logits[:, tied] = torch.where(short, logits[:, tied].nextafter(torch.tensor(inf)), logits[:, tied])
    assert_chosen(logits, [divisor] * len(keys), keys, kernel)
    assert native.choose(logits, [divisor] * len(keys), keys, kernel=kernel) == [tied] * len(keys)


@kernels
@pytest.mark.parametrize("step", [1.0, 8.0, 1e6, 1e20, 1e29, 2e30, 1e38])
def test_ties_go_to_the_lowest_id(kernel, step):
    """Coarse logits; the largest ones swallow the noise whole."""
    logits = some_logits(30, 1000, 2.0).round() * step
    keys = some_keys(30)
    assert_chosen(logits, None, keys, kernel)
    assert_chosen(logits, [0.5] * 30, keys, kernel)
    assert_chosen(logits, [1e-20] * 30, keys, kernel)
    assert native.choose(logits, kernel=kernel) == logits.argmax(-1).tolist()


def odd_rows(values, dtype, count: int) -> Iterator[tuple[int, Tensor]]:
    """Widths, and so many rows of each made of `values`."""
    generator = torch.Generator().manual_seed(1)
    for width in WIDTHS[:-1]:
        yield width, torch.tensor(values, dtype=dtype)[torch.randint(len(values), (count, width), generator=generator)]


@dtypes
@odd_values
def test_rows_of_few_odd_values(values, dtype):
    for _, logits in odd_rows(values, dtype, 20):
        assert native.choose(logits) == logits.float().argmax(-1).tolist()
        for divisors in (None, [0.3] * 20, [3e38] * 20, [1e-37] * 20, [inf] * 20):
            assert_chosen(logits, divisors, some_keys(20))


@dtypes
@pytest.mark.parametrize("sign", [1, -1])
def test_nan_counts_as_the_largest_and_the_first_wins(dtype, sign):
    logits = some_logits(3, 500, 1.0)
    logits[0, [333, 20]] = logits[1, 499] = logits[2, 0] = nan
    logits[0, 4] = inf
    logits = (logits.abs() * sign).to(dtype)
    expected = logits.float().argmax(-1).tolist()
    assert expected == [20, 499, 0]
    assert native.choose(logits) == native.choose(logits, None, some_keys(3)) == expected
    assert [row[0] for row in native.top(logits, 2)[1]] == expected


@st.composite
def logits_of_any_bits(draw) -> torch.Tensor:
    """Three rows of any bit pattern, NaN and infinities included, mostly few of them many times over."""
    dtype = draw(st.sampled_from(DTYPES))
    bits = 8 * dtype.itemsize
    integers = torch.int16 if bits == 16 else torch.int32
    pool = draw(st.lists(st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1), min_size=1, max_size=6))
    width, seed = draw(st.integers(1, 400)), draw(st.integers(0, 99))
    place = torch.randint(len(pool), (3, width), generator=torch.Generator().manual_seed(seed))
    return torch.tensor(pool, dtype=integers)[place].view(dtype)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_bits_whatever(data):
    logits = data.draw(logits_of_any_bits())
    keys = data.draw(st.lists(keys_of_rows, min_size=3, max_size=3))
    divisors = data.draw(st.none() | st.lists(st.floats(1e-30, 1e30) | st.just(inf), min_size=3, max_size=3))
    kernel = data.draw(st.sampled_from(KERNELS))
    assert_chosen(logits, divisors, keys, kernel)
    assert native.choose(logits, kernel=kernel) == logits.float().argmax(-1).tolist()


@settings(max_examples=100, deadline=None)
@given(keys_of_rows, st.integers(1, 3000), st.floats(1e-3, 1e3), st.integers(0, 40), st.integers(0, 99))
def test_any_key_width_and_scale(key, width, divisor, power, seed):
    logits = some_logits(2, width, 2.0 ** (power - 20), seed)
    assert_chosen(logits, [divisor] * 2, [key, ~key])


def test_several_tensors_read_as_one():
    logits, keys = some_logits(12, 700, 2.0), some_keys(12)
    divisors = [1.0 + row for row in range(12)]
    parts = list(logits.split([1, 4, 0, 5, 2]))
    assert native.choose(parts, divisors, keys) == native.choose(logits, divisors, keys)
    assert native.choose(tuple(parts)) == native.choose(logits)
    assert native.top(parts, 4) == native.top(logits, 4)
    assert native.log_sum_exp(parts) == native.log_sum_exp(logits)
    assert native.choose([]) == native.choose(logits[:0]) == []


def test_rows_that_do_not_lie_one_behind_the_other():
    wide, keys = some_logits(8, 900, 2.0), some_keys(4)
    cut = wide[1::2, 30:777]
    assert native.choose(cut, None, keys) == native.choose(cut.clone(), None, keys)
    assert native.choose(wide[:1].expand(4, -1), None, keys) == native.choose(wide[:1].repeat(4, 1), None, keys)


def test_arrays_and_parameters_are_read_like_tensors():
    logits = some_logits(3, 50, 1.0)
    expected = logits.argmax(-1).tolist()
    assert native.choose(logits.numpy()) == native.choose(torch.nn.Parameter(logits)) == expected


# ---------------------------------------------------------------------------------------------------- the first few


@kernels
@dtypes
@pytest.mark.parametrize("spread", [0.0, 1.0, 40.0])
def test_top_is_a_stable_sort_cut_off(kernel, dtype, spread):
    for width in WIDTHS:
        logits = some_logits(5, width, spread).to(dtype)
        rounded = logits.round()  # ties
        for rows in (logits, rounded):
            order = torch.sort(rows.float(), dim=-1, descending=True, stable=True)
            for count in {1, 2, 10, 32} & set(range(width + 1)) | {min(width, 400)}:
                values, tokens = native.top(rows, count, kernel=kernel)
                assert tokens == order.indices[:, :count].tolist()
                assert values == order.values[:, :count].tolist()


def test_top_with_forbidden_tokens():
    logits = torch.full((1, 300), -inf)
    logits[0, [7, 290]] = torch.tensor([1.0, 2.0])
    values, tokens = native.top(logits, 4)
    assert values == [[2.0, 1.0, -inf, -inf]] and tokens == [[290, 7, 0, 1]]


# ------------------------------------------------------------------------------------------- the first few under noise

ESTIMATE = 1e-3  # how far the log of the sum of shares may be off
ROUGH = 0.7  # where a token's noise is nearly as large or as small as noise can be


def perturbed(logits: Tensor, divisors: list[float], keys: list[int | None], ids: Tensor | None) -> Tensor:
    """Values as torch makes them, from the noise of all tokens."""
    rows = logits.float() / torch.tensor(divisors)[:, None]
    for row, key in enumerate(keys):
        if key is not None:
            tokens = torch.arange(logits.shape[1]) if ids is None else ids
            own = torch.empty(len(tokens))
            native.gumbel_pairs(torch.full((len(tokens),), key), tokens, own)
            rows[row] += own
    return rows


def assert_drawn_top(
    logits: Tensor,
    count: int,
    divisors: list[float],
    keys: list[int | None],
    ids: Tensor | None = None,
    kernel: str = "",
    estimate: float = ESTIMATE,
) -> None:
    expected = perturbed(logits, divisors, keys, ids)
    values, columns = native.top(expected, count)
    tokens = columns if ids is None else ids[torch.tensor(columns)].tolist()
    found = native.drawn_top(logits, count, divisors, keys, ids, kernel=kernel)
    assert found[1] == tokens
    assert str(found[0]) == str(values)  # NaN included
    for total, other, row in zip(found[2], native.log_sum_exp(expected), values, strict=True):
        assert str(total) == str(other) or abs(total - other) < estimate * max(1, abs(other) * 1e-3)
        assert not total < row[0]
    assert str(found) == str(native.drawn_top(logits, count, divisors, keys, ids))


@kernels
@dtypes
@pytest.mark.parametrize("count", [1, 2, 3, 10, 16])
def test_the_first_few_under_noise_are_those_of_all_noise(kernel, dtype, count):
    generator = torch.Generator().manual_seed(count)
    for width in [*WIDTHS, 1000]:
        ids = torch.randint(100_000, (width,), generator=generator)
        keys = [*some_keys(6, seed=width), None, None]
        for spread in (0.0, 1.0, 5.0, 60.0):
            logits = some_logits(8, width, spread, seed=width).to(dtype)
            for divisors in ([1.0] * 8, [0.3, 0.8, 1.7, 9.0] * 2):
                for named in (None, ids):
                    assert_drawn_top(logits, min(count, width), divisors, keys, named, kernel)


@kernels
@pytest.mark.parametrize("count", [1, 3, 16])
@pytest.mark.parametrize("divisor", [1.0, 0.3, 1e-6, 1e4])
@pytest.mark.parametrize("level", [0.0, -300.0, 1e5])
def test_the_first_few_of_values_within_a_rounding_of_each_other(kernel, count, divisor, level):
    keys = some_keys(5, seed=3)
    logits = (level - gumbel_rows(torch.tensor(keys), 4000)) * divisor
    assert_drawn_top(logits, count, [divisor] * 5, keys, None, kernel)


@kernels
def test_the_largest_noise_lifts_a_token_among_the_first_few(kernel):
    logits = torch.full((20, 2000), -25.0)
    logits[:, -1] = 0.0
    keys = [key_of(noise.MASK, 91 * row) for row in range(20)]
    assert_drawn_top(logits, 3, [1.0] * 20, keys, None, kernel, ROUGH)
    assert_drawn_top(logits * 0.1, 3, [0.1] * 20, keys, torch.arange(2000), kernel, ROUGH)


@dtypes
@odd_values
def test_the_first_few_of_rows_of_few_odd_values(values, dtype):
    for width, logits in odd_rows(values, dtype, 6):
        for divisor in (1.0, 0.3, 3e38, 1e-37, inf):
            assert_drawn_top(logits, min(width, 5), [divisor] * 6, some_keys(6))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_the_first_few_of_any_bits_whatever(data):
    logits = data.draw(logits_of_any_bits())
    width = logits.shape[1]
    keys = data.draw(st.lists(st.none() | keys_of_rows, min_size=3, max_size=3))
    divisors = data.draw(st.lists(st.floats(1e-30, 1e30) | st.just(inf), min_size=3, max_size=3))
    ids = data.draw(st.none() | st.just(torch.arange(width).flip(0) * 7))
    count = data.draw(st.integers(1, min(width, 16)))
    found = native.drawn_top(logits, count, divisors, keys, ids, kernel=data.draw(st.sampled_from(KERNELS)))
    values, columns = native.top(perturbed(logits, divisors, keys, ids), count)
    assert str(found[0]) == str(values)
    assert found[1] == (columns if ids is None else ids[torch.tensor(columns)].tolist())


@settings(max_examples=100, deadline=None)
@given(keys_of_rows, st.integers(1, 3000), st.floats(1e-2, 1e2), st.integers(1, 16), st.integers(0, 99))
def test_the_first_few_of_any_key_width_and_scale(key, width, divisor, count, seed):
    logits = some_logits(2, width, 3.0, seed)
    assert_drawn_top(logits, min(count, width), [divisor] * 2, [key, ~key], estimate=ROUGH)  # 0 is hashed to 0


def test_the_estimate_of_the_sum_is_right_for_many_rows():
    keys, logits = some_keys(400), some_logits(400, 8192, 3.0)
    found = torch.tensor(native.drawn_top(logits, 1, None, keys)[2], dtype=torch.float64)
    expected = torch.tensor(native.log_sum_exp(logits + gumbel_rows(torch.tensor(keys), 8192)), dtype=torch.float64)
    off = (found - expected).abs().sort().values
    assert off[200] < ESTIMATE / 10 and off[-5] < ESTIMATE and off[-1] < 10 * ESTIMATE


def test_the_largest_share_is_never_above_one():
    """u as near to 1 as it comes, where the estimate is worst."""
    keys = [key_of(noise.MASK ^ low, 5) for low in range(0, 1 << 36, 1 << 30)]
    [*values], _, totals = native.drawn_top(torch.zeros(len(keys), 300), 1, None, keys)
    expected = native.log_sum_exp(gumbel_rows(torch.tensor(keys), 300))
    for [value], total, exact in zip(values, totals, expected, strict=True):
        assert value <= total and abs(total - exact) < ROUGH


def test_without_noise_it_is_top_and_the_normaliser():
    logits = some_logits(4, 500, 2.0)
    assert native.drawn_top(logits, 7) == (*native.top(logits, 7), native.log_sum_exp(logits))
    assert native.drawn_top(list(logits.split(2)), 7, [1.0] * 4, [None] * 4) == native.drawn_top(logits, 7)
    assert native.drawn_top([], 7) == ([], [], [])


# ---------------------------------------------------------------------------------------------------- normaliser


@dtypes
@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0, 30.0, 1000.0])
def test_the_normaliser(dtype, spread):
    for width in WIDTHS:
        logits = some_logits(4, width, spread).to(dtype)
        found = torch.tensor(native.log_sum_exp(logits), dtype=torch.float64)
        assert (found - logits.double().logsumexp(-1)).abs().max() < 3e-7


def test_the_normaliser_of_infinite_rows():
    logits = torch.tensor([[1.0, inf], [-inf, -inf], [-inf, 2.0], [inf, -inf]])
    assert native.log_sum_exp(logits) == [inf, -inf, 2.0, inf]
    [odd] = native.log_sum_exp(torch.tensor([[inf, nan]]))
    assert odd != odd


# ---------------------------------------------------------------------------------------------------- refusals

ROWS = torch.zeros(2, 3)
REFUSED = [
    (lambda: native.choose(torch.zeros(3)), "must be \\[R, V\\]"),
    (lambda: native.choose(ROWS.double()), "bfloat16 or float32"),
    (lambda: native.choose(torch.zeros(3, 2).t()), "side by side"),
    (lambda: native.choose(ROWS[:, :0]), "no columns"),
    (lambda: native.choose([ROWS, torch.zeros(1, 4)]), "one width"),
    (lambda: native.choose(ROWS, None, [1]), "needs a key"),
    (lambda: native.choose(ROWS, [1.0, 1.0]), "rows with keys"),
    (lambda: native.choose(ROWS, [1.0], [1, 2]), "needs a divisor"),
    (lambda: native.choose(ROWS, [1.0, 0.0], [1, 2]), "above 0"),
    (lambda: native.choose(ROWS, [1.0, nan], [1, 2]), "above 0"),
    (lambda: native.choose(ROWS, kernel="abacus"), "'abacus'"),
    (lambda: native.top(ROWS, 0), "between 1 and the width"),
    (lambda: native.top(ROWS, 4), "between 1 and the width"),
    (lambda: native.drawn_top(ROWS, 4), "between 1 and the width"),
    (lambda: native.drawn_top(ROWS, 1, [1.0, 0.0]), "above 0"),
    (lambda: native.drawn_top(ROWS, 1, None, [1]), "needs a key"),
    (lambda: native.drawn_top(ROWS, 1, None, None, torch.arange(2)), "needs an id"),
    (lambda: native.drawn_top(ROWS, 1, None, None, torch.zeros(3)), "int64"),
    (lambda: native.gumbel_rows(torch.zeros(2), ROWS), "int64"),
    (lambda: native.gumbel_rows(torch.zeros(3, dtype=torch.long), ROWS), "needs a key"),
    (lambda: native.gumbel_rows(torch.zeros(2, dtype=torch.long), ROWS.half()), "float32"),
    (lambda: native.gumbel_pairs(torch.arange(2), torch.arange(3), torch.zeros(2)), "equally many"),
    (lambda: native.position_keys([1, 2], [3]), "needs a seed"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_what_cannot_be_done_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("other", [(3,), (None,), ("rows",), ([1, 2],), (ROWS, None, 7), (ROWS, ["a", "b"], [1, 2])])
def test_what_is_neither_tensor_nor_list_is_refused(other):
    with pytest.raises(TypeError):
        native.choose(*other)


@pytest.mark.parametrize(("setting", "used"), [("off", False), ("auto", True)])
def test_the_environment_switches_it_off(monkeypatch, setting, used):
    monkeypatch.setenv("FOREDRAFT_NATIVE", setting)
    code = "from foredraft.sampling import noise; print(noise.native is not None)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str(used)
