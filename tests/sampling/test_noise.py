"""Noise is keyed by its coordinates alone and is as random as noise must be."""

from itertools import pairwise

import pytest
import torch
from hashes_for_tests import key_of, unmixed

from foredraft.sampling import noise
from foredraft.sampling.noise import gumbel, mixed, mixed_int, signed, uniform

pytestmark = pytest.mark.usefixtures("way")


def positions(*values):
    return torch.tensor(values, dtype=torch.long)


def as_uniform(gumbels):
    """The uniform numbers standard Gumbel noise was made of."""
    return torch.exp(-torch.exp(-gumbels.double()))


def chi_squared(counts, expected):
    return ((counts - expected) ** 2 / expected).sum().item()


def chi_squared_limit(degrees):
    """About five standard deviations above the mean."""
    return degrees + 5 * (2 * degrees) ** 0.5


def correlation(a, b):
    return torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1].item()


def test_splitmix_agrees_with_its_published_first_numbers():
    # The generator seeded with 0 hashes its increment's multiples.
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    steps = [noise.INCREMENT * i & noise.MASK for i in (1, 2, 3)]
    assert [mixed_int(step) for step in steps] == published
    assert mixed(torch.tensor([signed(step) for step in steps])).tolist() == [signed(value) for value in published]


def test_noise_never_changes():
    values = [0.5554984, 0.6243492, -1.1713526, 0.4145741, 0.9443136, -0.8970614]
    assert gumbel(7, [0, 1000], 3).flatten().tolist() == pytest.approx(values, abs=1e-6)
    assert uniform(7, 3, "coin", 2) == 0.3281910933107067


def test_a_row_depends_on_its_position_alone(monkeypatch):
    whole = gumbel(3, range(20), 257)
    assert torch.equal(gumbel(3, [11], 257)[0], whole[11])
    assert torch.equal(gumbel(3, [11, 4], 100), whole[[11, 4], :100])
    monkeypatch.setattr(noise, "CHUNK", 512)
    assert torch.equal(gumbel(3, range(20), 257), whole)


def test_keys_of_several_seeds_and_positions():
    seeds, places = [0, 3, -5, 2**64 + 3, 2**70 - 1], [0, 1, 2**40, 1, 7]
    keys = noise.position_keys(seeds, places)
    assert keys == [noise.position_key(seed, place) for seed, place in zip(seeds, places, strict=True)]
    assert keys == [noise.row_keys(seed, positions(place)).item() for seed, place in zip(seeds, places, strict=True)]
    assert torch.equal(noise.gumbel_rows(torch.tensor(keys[1:2]), 9), gumbel(3, [1], 9))


def test_single_pairs_have_the_noise_of_whole_rows():
    whole = gumbel(3, range(20), 257)
    rows, tokens = positions(19, 0, 7), positions(0, 256, 7)
    assert torch.equal(noise.gumbel_at(3, rows, tokens), whole[rows, tokens])


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1, 2**64 - 1, -5])
def test_noise_is_finite_for_every_seed(seed):
    values = gumbel(seed, [0, 1, 2**40], 50_000)
    assert values.dtype == torch.float32
    assert values.isfinite().all()
    assert values.std().item() == pytest.approx(1.2825, abs=0.01)  # pi / sqrt(6)


@pytest.mark.parametrize(("bits", "value"), [(0, -3.6038), (noise.MASK, 36.7368)])
def test_the_extreme_hashes_give_finite_noise(bits, value):
    assert mixed_int(unmixed(bits)) == bits
    rows = noise.gumbel_rows(torch.tensor([key_of(bits, 0), key_of(bits, 7)]), 8)
    assert rows[[0, 1], [0, 7]].tolist() == pytest.approx([value, value], abs=1e-4)


@pytest.mark.parametrize("seed", [0, 1, 123456789])
def test_noise_has_the_gumbel_law(seed):
    sample = as_uniform(gumbel(seed, range(64), 4096)).flatten().sort().values
    n = len(sample)
    distance = (sample - (torch.arange(n) + 0.5) / n).abs().max().item()
    assert distance < 1.95 / n**0.5  # Kolmogorov-Smirnov at 0.1 %
    counts = torch.histc(sample, bins=256, min=0, max=1)
    assert chi_squared(counts, n / 256) < chi_squared_limit(255)


def test_neighbouring_tokens_positions_and_seeds_are_independent():
    grid = torch.stack([as_uniform(gumbel(seed, range(100, 132), 4096)) for seed in range(8)])  # [S, T, V]
    limit = 5 / grid[1:].numel() ** 0.5
    assert abs(correlation(grid[:, :, 1:], grid[:, :, :-1])) < limit
    assert abs(correlation(grid[:, 1:], grid[:, :-1])) < limit
    assert abs(correlation(grid[1:], grid[:-1])) < limit
    assert abs(correlation(grid[1:, :-1], grid[:-1, 1:])) < limit


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_pairs_of_neighbours_fill_the_square_evenly(axis):
    grid = torch.stack([as_uniform(gumbel(seed, range(32), 2048)) for seed in range(8)])
    cells = (grid * 16).long()
    size = cells.shape[axis]
    pairs = cells.narrow(axis, 0, size - 1) * 16 + cells.narrow(axis, 1, size - 1)
    counts = torch.bincount(pairs.flatten(), minlength=256).double()
    assert chi_squared(counts, counts.sum() / 256) < chi_squared_limit(255)


@pytest.mark.parametrize("seed", [0, 5])
def test_argmax_of_perturbed_log_probabilities_has_their_law(seed):
    law = torch.tensor([0.3, 0.25, 0.2, 0.1, 0.08, 0.04, 0.02, 0.01])
    drawn = (law.log() + gumbel(seed, range(40_000), 8)).argmax(-1)
    counts = torch.bincount(drawn, minlength=8).double()
    assert chi_squared(counts, law.double() * len(drawn)) < chi_squared_limit(7)


def test_successive_draws_are_independent():
    drawn = gumbel(1, range(40_000), 4).argmax(-1)
    counts = torch.bincount(drawn[1:] * 4 + drawn[:-1], minlength=16).double()
    assert chi_squared(counts, counts.sum() / 16) < chi_squared_limit(15)


def test_coins_are_uniform_and_independent():
    coins = torch.tensor([[uniform(4, position, "coin", i) for i in range(20)] for position in range(500)])
    assert ((coins >= 0) & (coins < 1)).all()
    counts = torch.histc(coins, bins=32, min=0, max=1)
    assert chi_squared(counts, coins.numel() / 32) < chi_squared_limit(31)
    limit = 5 / coins.numel() ** 0.5
    assert abs(correlation(coins[1:], coins[:-1])) < limit
    assert abs(correlation(coins[:, 1:], coins[:, :-1])) < limit


def test_streams_seeds_positions_and_indices_differ():
    keys = [(4, 9, "coin", 1), (4, 9, "residual", 1), (5, 9, "coin", 1), (4, 10, "coin", 1), (4, 9, "coin", 2)]
    values = [uniform(*key) for key in keys]
    assert len(set(values)) == len(values)
    assert values[0] == uniform(*keys[0])


def test_coins_are_independent_of_the_noise_and_of_other_streams():
    count = 5000
    columns = [
        torch.tensor([uniform(2, t, "coin", 0) for t in range(count)]).double(),
        torch.tensor([uniform(2, t, "residual", 0) for t in range(count)]).double(),
        as_uniform(gumbel(2, range(count), 1))[:, 0],
    ]
    for a, b in [*pairwise(columns), (columns[0], columns[2])]:
        assert abs(correlation(a, b)) < 5 / count**0.5
