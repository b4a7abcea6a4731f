"""A row's numbers are the same bits whoever shares the forward: the ground on which speculation is exact in bf16."""

import pytest
import torch
from small_decoder import KERNELS, VOCABULARY, Given, Sizes, native_decoder, text

TOKENS = torch.randint(VOCABULARY, (130,), generator=torch.Generator().manual_seed(3)).tolist()
CONTEXT = 30
SIZES = {
    "plain": Sizes(),
    "window": Sizes(window=7, head_norms=True),
    "softcap": Sizes(softcap=5.0, activation="gelu_tanh", wide=True),
    "int8": Sizes(hidden=64, weights="int8"),
    "broad int8": Sizes(hidden=256, inner=320, heads=8, kv_heads=4, head_size=64, rotated=64, weights="int8"),
    "broad": Sizes(hidden=256, inner=320, heads=8, kv_heads=4, head_size=64, rotated=64),
}


def one_by_one(decoder, tokens: list[int]) -> torch.Tensor:
    return torch.cat([decoder.run(text([token], place))[0] for place, token in enumerate(tokens)])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", SIZES)
def test_alone_and_in_packs_of_any_size(name, kernels, dtype):
    alone = one_by_one(native_decoder(kernels, dtype, SIZES[name]), TOKENS)
    for rows in (2, 5, 7, 16, 32, 64, 100):
        decoder = native_decoder(kernels, dtype, SIZES[name])
        parts = [decoder.run(text(TOKENS[i : i + rows], i))[0] for i in range(0, len(TOKENS), rows)]
        assert torch.equal(torch.cat(parts), alone), rows


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("place", [0, 1, 5, 40, 98])
def test_at_any_place_of_a_pack_of_strangers(kernels, place):
    decoder = native_decoder(kernels, "bf16")
    decoder.run(text(TOKENS[:CONTEXT]))
    alone, _ = decoder.run(text([7], CONTEXT))
    strangers = [(5 * i + 1) % VOCABULARY for i in range(98)]
    slots = torch.arange(100, 198)
    before, after = slots[:place], slots[place:]
    segments = [(0, place, 0, 100, None, None)] if place else []
    segments.append((place, 1, CONTEXT, 0, None, None))
    if len(after):
        segments.append((place + 1, len(after), 0, 100 + place, None, None))
    positions = [*range(place), CONTEXT, *range(len(after))]
    write = [*before.tolist(), CONTEXT, *after.tolist()]
    given = Given([*strangers[:place], 7, *strangers[place:]], positions, write, segments)
    assert torch.equal(decoder.run(given)[0][place], alone[0])


def tree(parents: list[int]) -> tuple[list[int], torch.Tensor]:
    """Depth of each node, and who sees whom with the root in row 0."""
    depths, seen = [0], torch.eye(len(parents) + 1, dtype=torch.bool)
    for node, parent in enumerate(parents, start=1):
        depths.append(depths[parent + 1] + 1)
        seen[node] |= seen[parent + 1]
    return depths, seen


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("said", ["by mask", "by parents"])
@pytest.mark.parametrize("head_size", [10, 64])
def test_a_node_of_a_tree_is_the_same_token_of_a_plain_text(kernels, dtype, window, said, head_size):
    sizes = Sizes(window=window, head_size=head_size)
    parents = [-1, -1, 0, 0, 1, 3, 3, 4, 6, 8]
    depths, seen = tree(parents)
    drafted = [(11 * i + 2) % VOCABULARY for i in range(len(parents) + 1)]
    slots = [CONTEXT + 2 * i for i in range(len(drafted))]
    decoder = native_decoder(kernels, dtype, sizes)
    decoder.run(text(TOKENS[:CONTEXT]))
    keys = torch.tensor([*range(CONTEXT), *slots])
    segment = (0, len(drafted), CONTEXT, -1, keys, seen if said == "by mask" else parents)
    got, _ = decoder.run(Given(drafted, [CONTEXT + depth for depth in depths], slots, [segment]))
    for node in range(len(drafted)):
        path = [drafted[i] for i in range(len(drafted)) if seen[node, i]]
        plain = one_by_one(native_decoder(kernels, dtype, sizes), TOKENS[:CONTEXT] + path)
        assert torch.equal(got[node], plain[-1]), node


@pytest.mark.parametrize("kernels", KERNELS)
def test_with_any_number_of_threads(kernels):
    wanted, _ = native_decoder(kernels, "bf16", SIZES["broad"], threads=1).run(text(TOKENS))
    for threads in (2, 3, 5):
        assert torch.equal(
            native_decoder(kernels, "bf16", SIZES["broad"], threads=threads).run(text(TOKENS))[0], wanted
        )


def test_wanted_rows_are_those_of_all_rows():
    decoder = native_decoder(KERNELS[0], "bf16")
    everything, _ = decoder.run(text(TOKENS[:40]))
    given = text(TOKENS[:40])
    given.wanted = [3, 17, 39]
    assert torch.equal(decoder.run(given)[0], everything[given.wanted])
