"""A drafter's chains in one call are what its rows say one forward at a time, whoever shares the call."""

from dataclasses import dataclass
from math import inf

import foredraft_native as native
import pytest
import torch
from small_decoder import KERNELS, VOCABULARY, Given, Sizes, SmallDecoder, native_decoder

TOKENS = torch.randint(VOCABULARY, (60,), generator=torch.Generator().manual_seed(5)).tolist()
SCATTERED = torch.randperm(60, generator=torch.Generator().manual_seed(6)) + 60
SIZES = {"plain": Sizes(), "window": Sizes(window=5, head_norms=True), "int8": Sizes(hidden=64, weights="int8")}


@dataclass(frozen=True)
class Order:
    """A chain of `depth` tokens behind the first `context` + `pending` ones of a text in `slots`."""

    depth: int
    context: int
    pending: int
    slots: torch.Tensor
    divisor: float = 1.0
    seed: int | None = None

    @property
    def run(self) -> bool:
        return bool((self.slots.diff() == 1).all())

    @property
    def text(self) -> list[int]:
        return TOKENS[: self.context + self.pending]

    @property
    def keys(self) -> list[int]:
        places = range(len(self.text), len(self.text) + self.depth)
        return [] if self.seed is None else native.position_keys([self.seed] * self.depth, places)

    @property
    def chain(self) -> tuple:
        first, slots = (int(self.slots[0]), None) if self.run else (-1, self.slots)
        return self.depth, self.context, first, slots, self.text[self.context :], self.divisor, self.keys, -inf

    def rows(self, tokens: list[int], start: int) -> Given:
        """These tokens behind `start` ones."""
        stop = start + len(tokens)
        keys = (int(self.slots[0]), None) if self.run else (-1, self.slots[:stop].contiguous())
        segment = (0, len(tokens), start, *keys, None)
        return Given(tokens, list(range(start, stop)), self.slots[start:stop].tolist(), [segment])

    def token(self, logits: torch.Tensor, step: int) -> int:
        values = logits.float() / self.divisor
        if self.seed is not None:
            noise = torch.empty(1, VOCABULARY)
            native.gumbel_rows(torch.tensor(self.keys[step : step + 1]), noise)
            values = values + noise[0]
        return int(values.argmax())


ORDERS = [
    Order(4, 30, 1, torch.arange(60)),
    Order(1, 12, 3, SCATTERED),
    Order(5, 0, 9, torch.arange(120, 180), 0.7, 3),
    Order(3, 20, 2, torch.arange(180, 240), 1.0, 4),
]


def drafted(decoder: SmallDecoder, orders: list[Order]) -> tuple[list[list[int]], list[list[float]]]:
    for order in orders:
        if order.context:
            decoder.run(order.rows(order.text[: order.context], 0))
    return native.draft_chain(decoder.program, decoder.cache, [o.chain for o in orders], None, None, VOCABULARY)


def one_forward_at_a_time(decoder: SmallDecoder, order: Order) -> list[int]:
    """Every token in a forward of its own, drafted ones included."""
    for place, token in enumerate(order.text):
        logits, _ = decoder.run(order.rows([token], place))
    tokens: list[int] = []
    for step in range(order.depth):
        tokens.append(order.token(logits[-1], step))
        if step < order.depth - 1:
            logits, _ = decoder.run(order.rows(tokens[-1:], len(order.text) + step))
    return tokens


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", SIZES)
def test_ragged_chains_are_forwards_of_single_rows(name, kernels, dtype):
    together, apart = (native_decoder(kernels, dtype, SIZES[name]) for _ in range(2))
    tokens, _ = drafted(together, ORDERS)
    assert tokens == [one_forward_at_a_time(apart, order) for order in ORDERS]
    for ours, theirs in zip(together.keys + together.values, apart.keys + apart.values, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_chain_is_the_same_alone(kernels):
    tokens, gains = drafted(native_decoder(kernels, "bf16"), ORDERS)
    for order, own, chances in zip(ORDERS, tokens, gains, strict=True):
        assert drafted(native_decoder(kernels, "bf16"), [order]) == ([own], [chances])
        assert len(own) == len(chances) == order.depth and max(chances) <= 0


def test_chains_end_where_their_paths_are_too_unlikely():
    tokens, gains = drafted(native_decoder(KERNELS[0], "bf16"), ORDERS)
    lengths = [2, 1, 3, 3]
    chains = [
        (*order.chain[:-1], sum(own[:length]) + 1e-9) for order, own, length in zip(ORDERS, gains, lengths, strict=True)
    ]
    decoder = native_decoder(KERNELS[0], "bf16")
    drafted(decoder, ORDERS)
    cut, _ = native.draft_chain(decoder.program, decoder.cache, chains, None, None, VOCABULARY)
    assert cut == [own[:length] for own, length in zip(tokens, lengths, strict=True)]


def test_no_chains():
    decoder = native_decoder(KERNELS[0], "fp32")
    assert native.draft_chain(decoder.program, decoder.cache, [], None, None, VOCABULARY) == ([], [])
