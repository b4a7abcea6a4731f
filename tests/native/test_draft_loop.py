"""A drafter's drafts in one call are what its rows say one forward at a time, whoever shares the call."""

from dataclasses import dataclass, replace
from math import exp

import foredraft_native as native
import pytest
import torch
from small_decoder import KERNELS, VOCABULARY, Given, Sizes, SmallDecoder, native_decoder

TOKENS = torch.randint(VOCABULARY, (60,), generator=torch.Generator().manual_seed(5)).tolist()
SCATTERED = torch.randperm(60, generator=torch.Generator().manual_seed(6)) + 60
FREE = (1.0, 0.0, 0.0, 1.0, [])  # candour, costs of a row and of a run, chance of another token, of steps
ANY = float("-inf")  # log-chance of the token that ends a chain
SIZES = {"plain": Sizes(), "window": Sizes(window=5, head_norms=True), "int8": Sizes(hidden=64, weights="int8")}


@dataclass(frozen=True)
class Order:
    """A draft behind the first `context` + `pending` tokens of a text in `slots`: a chain of `depth`, or a tree."""

    depth: int
    context: int
    pending: int
    slots: torch.Tensor
    divisor: float = 1.0
    seed: int | None = None
    width: int = 1
    nodes: int = 50
    least: float = ANY

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
    def room(self) -> list[int]:
        first = len(self.text)
        return self.slots[first : first + self.width * (self.depth - 1)].tolist()

    def order(self, growth: tuple[float, ...] = FREE) -> tuple:
        text, kept = self.text, self.slots[: len(self.text)].contiguous()
        first, slots = (int(self.slots[0]), None) if self.run else (-1, kept)
        shape, place = (self.depth, self.width, self.nodes), (self.context, first, slots)
        return *shape, *place, text[self.context :], self.room, self.divisor, self.keys, self.least, *growth

    def rows(self, tokens: list[int], start: int) -> Given:
        """These tokens behind `start` ones."""
        stop = start + len(tokens)
        keys = (int(self.slots[0]), None) if self.run else (-1, self.slots[:stop].contiguous())
        segment = (0, len(tokens), start, *keys, None)
        return Given(tokens, list(range(start, stop)), self.slots[start:stop].tolist(), [segment])

    def token(self, logits: torch.Tensor, step: int) -> int:
        return int(self.values(logits, step).argmax())

    def values(self, logits: torch.Tensor, step: int) -> torch.Tensor:
        values = logits.float() / self.divisor
        if self.seed is not None:
            noise = torch.empty(1, VOCABULARY)
            native.gumbel_rows(torch.tensor(self.keys[step : step + 1]), noise)
            values = values + noise[0]
        return values


ORDERS = [
    Order(4, 30, 1, torch.arange(60)),
    Order(1, 12, 3, SCATTERED),
    Order(5, 0, 9, torch.arange(120, 180), 0.7, 3),
    Order(3, 20, 2, torch.arange(180, 240), 1.0, 4),
]


def drafted(decoder: SmallDecoder, orders: list[Order], growth: list[tuple] | None = None) -> list[tuple]:
    """Tokens, parents, gains and places of each draft."""
    for order in orders:
        if order.context:
            decoder.run(order.rows(order.text[: order.context], 0))
    given = [order.order(own) for order, own in zip(orders, growth or [FREE] * len(orders), strict=True)]
    return native.draft(decoder.program, decoder.cache, given, None, None, VOCABULARY)


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
    tokens = [draft[0] for draft in drafted(together, ORDERS)]
    assert tokens == [one_forward_at_a_time(apart, order) for order in ORDERS]
    for ours, theirs in zip(together.keys + together.values, apart.keys + apart.values, strict=True):
        assert torch.equal(ours, theirs)


TREES = [
    Order(3, 30, 1, torch.arange(60), width=3, nodes=9),
    Order(4, 12, 3, SCATTERED, width=2),
    Order(3, 0, 9, torch.arange(120, 180), 0.7, 3, width=4, nodes=20),
    ORDERS[3],
]


@pytest.mark.parametrize("kernels", KERNELS)
def test_a_draft_is_the_same_alone(kernels):
    for orders in (ORDERS, TREES):
        for order, draft in zip(orders, drafted(native_decoder(kernels, "bf16"), orders), strict=True):
            assert drafted(native_decoder(kernels, "bf16"), [order]) == [draft]


def share(order: Order, logits: torch.Tensor, step: int, token: int) -> float:
    values = order.values(logits, step)
    return float(values.log_softmax(-1)[token])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kernels", KERNELS)
def test_a_node_is_worth_what_its_path_alone_says(kernels, dtype):
    together, apart = (native_decoder(kernels, dtype) for _ in range(2))
    for order, (tokens, parents, gains, places) in zip(TREES, drafted(together, TREES), strict=True):
        assert len(tokens) == min(order.nodes, order.width * (1 + order.width * (order.depth - 1)))
        assert {place for place in places if place >= 0} <= set(range(len(order.room)))
        for node, token in enumerate(tokens):
            path, above = [], parents[node]
            while above >= 0:
                path, above = [tokens[above], *path], parents[above]
            logits, _ = apart.run(replace(order, slots=torch.arange(60)).rows([*order.text, *path], 0))
            assert gains[node] == pytest.approx(share(order, logits[-1], len(path), token), abs=1e-4)
            best = order.values(logits[-1], len(path)).topk(order.width).indices
            assert token in best.tolist()


def test_of_a_tree_the_likeliest_paths_stay():
    whole, few = (replace(TREES[0], nodes=nodes) for nodes in (50, 7))
    [(tokens, parents, gains, _)] = drafted(native_decoder(KERNELS[0], "fp32"), [whole])
    [(kept, *_)] = drafted(native_decoder(KERNELS[0], "fp32"), [few])
    scores = list(gains)
    for node, parent in enumerate(parents):
        scores[node] += scores[parent] if parent >= 0 else 0.0
    best = sorted(sorted(range(len(tokens)), key=lambda node: -scores[node])[:7])
    assert kept == [tokens[node] for node in best]


def test_chains_end_where_their_paths_are_too_unlikely():
    whole = drafted(native_decoder(KERNELS[0], "bf16"), ORDERS)
    lengths = [2, 1, 3, 3]
    rows = [exp(sum(gains[:length]) + 1e-9) for (_, _, gains, _), length in zip(whole, lengths, strict=True)]
    for candour in (1.0, 0.5):
        growth = [(candour, row**candour, 0.0, 1.0, []) for row in rows]
        cut = drafted(native_decoder(KERNELS[0], "bf16"), ORDERS, growth)
        kept = [draft[0][: length - 1] for draft, length in zip(whole, lengths, strict=True)]
        assert [draft[0] for draft in cut] == kept, "the first token that is not worth its row is not verified"


def test_chains_end_with_a_token_that_is_too_unlikely():
    whole = drafted(native_decoder(KERNELS[0], "bf16"), ORDERS)
    least = max(gains[0] for _, _, gains, _ in whole if len(gains) > 1)
    cut = drafted(native_decoder(KERNELS[0], "bf16"), [replace(order, least=least) for order in ORDERS])
    ends = [next((i for i, gain in enumerate(gains) if gain < least), len(gains) - 1) for _, _, gains, _ in whole]
    assert [draft[0] for draft in cut] == [draft[0][: end + 1] for draft, end in zip(whole, ends, strict=True)]
    assert len(set(ends)) > 1
    assert drafted(native_decoder(KERNELS[0], "bf16"), [replace(TREES[0], least=0.0)]) == drafted(
        native_decoder(KERNELS[0], "bf16"), TREES[:1]
    )


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_chains_go_on_as_long_as_all_of_them_together_are_worth_a_run(depth):
    orders = [replace(order, depth=4) for order in ORDERS[:1] + ORDERS[2:]]
    whole = drafted(native_decoder(KERNELS[0], "bf16"), orders)
    chances = [[exp(sum(gains[: level + 1])) for level in range(4)] for _, _, gains, _ in whole]
    worth = [sum(chance[level] for chance in chances) for level in range(4)]
    run = (worth[depth - 1] + worth[depth - 2]) / 2 if depth > 1 else worth[0] * 1.01
    cut = drafted(native_decoder(KERNELS[0], "bf16"), orders, [(1.0, 0.0, run, 1.0, [])] * 3)
    assert [draft[0] for draft in cut] == [draft[0][:depth] for draft in whole]
    assert [draft[3] for draft in cut] == [[*range(depth - 1), -1]] * 3


def test_chains_fill_a_block_of_rows_that_is_worth_it_and_enter_no_other():
    orders = [replace(order, depth=4) for order in ORDERS[:1] + ORDERS[2:]]
    whole = drafted(native_decoder(KERNELS[0], "bf16"), orders)
    for filled in (3, 6, 12):  # nodes of a block
        steps = [0.0] * (filled + 1) + [100.0] * (12 - filled)
        cut = drafted(native_decoder(KERNELS[0], "bf16"), orders, [(1.0, 0.0, 0.0, 0.01, steps)] * 3)
        assert [draft[0] for draft in cut] == [draft[0][: filled // 3] for draft in whole]
    worth = sum(exp(sum(gains)) for _, _, gains, _ in whole)
    for cost, depth in ((2.97 * worth, 4), (100.0, 1)):  # a block of the last three levels
        steps = [0.0] * 4 + [cost] * 9
        cut = drafted(native_decoder(KERNELS[0], "bf16"), orders, [(1.0, 0.0, 0.0, 1.0, steps)] * 3)
        assert [draft[0] for draft in cut] == [draft[0][:depth] for draft in whole]


def test_nothing_is_verified_that_costs_more_than_it_brings():
    orders = [replace(order, depth=4) for order in ORDERS[:1] + ORDERS[2:]]
    cut = drafted(native_decoder(KERNELS[0], "bf16"), orders, [(1.0, 0.0, 0.0, 1.0, [0.0] + [100.0] * 12)] * 3)
    assert [draft[0] for draft in cut] == [[], [], []]


FREE, DEAR = (1.0, 0.0, 0.0, 1.0, []), [0.0] + [100.0] * 12


@pytest.mark.parametrize("paying", [(1.0, 0.0, 50.0, 1.0, []), (1.0, 0.0, 0.0, 1.0, DEAR), (1.0, 0.0, 50.0, 1.0, DEAR)])
def test_a_chain_that_pays_for_nothing_grows_whatever_the_others_pay(paying):
    orders = [replace(order, depth=4) for order in ORDERS[:1] + ORDERS[2:]]
    whole = drafted(native_decoder(KERNELS[0], "bf16"), orders)
    alone = drafted(native_decoder(KERNELS[0], "bf16"), orders, [paying] * 3)
    beside = drafted(native_decoder(KERNELS[0], "bf16"), orders, [paying, FREE, paying])
    assert max(len(draft[0]) for draft in alone) <= 1
    assert [draft[0] for draft in beside] == [draft[0] for draft in whole]  # and pays for the runs and the block


def test_chains_beside_a_free_one_pay_for_what_it_leaves_to_pay():
    orders = [replace(order, depth=depth) for order, depth in zip(ORDERS[:1] + ORDERS[2:], (4, 2, 4), strict=True)]
    whole = drafted(native_decoder(KERNELS[0], "bf16"), orders)
    for paying in ((1.0, 0.0, 50.0, 1.0, [0.0] * 13), (1.0, 0.0, 0.0, 0.01, [0.0] * 7 + [100.0] * 6)):
        beside = drafted(native_decoder(KERNELS[0], "bf16"), orders, [paying, FREE, paying])
        assert [draft[0] for draft in beside] == [draft[0][:2] for draft in whole]


@pytest.mark.parametrize(
    ("growth", "message"),
    [
        ((1.0, 0.0, 0.0, 1.0, [0.0]), "for no nodes and for some"),
        ((1.0, 0.0, 0.0, 1.0, [0.0, 1.0, 0.5]), "no less than with fewer"),
        ((1.0, 0.0, 0.0, 1.0, [0.0, float("nan")]), "no less than nothing"),
    ],
)
def test_what_steps_cost_must_rise(growth, message):
    with pytest.raises(ValueError, match=message):
        drafted(native_decoder(KERNELS[0], "bf16"), ORDERS[:1], [growth])
    with pytest.raises(ValueError, match="chains pay together"):
        drafted(native_decoder(KERNELS[0], "bf16"), TREES[:1], [(1.0, 0.0, 0.0, 1.0, [0.0, 1.0])])


def test_a_run_is_weighed_by_the_chance_of_the_token_it_brings():
    """A node may be worth its row, and the one behind it not."""
    orders = [replace(order, depth=4) for order in ORDERS[:1] + ORDERS[2:]]
    whole = drafted(native_decoder(KERNELS[0], "bf16"), orders)
    worth = [sum(exp(sum(gains[: level + 1])) for _, _, gains, _ in whole) for level in range(4)]
    for onward, depth in ((1.0, 3), (worth[2] / worth[1] * 0.99, 2)):
        cut = drafted(native_decoder(KERNELS[0], "bf16"), orders, [(1.0, 0.0, worth[2] * 0.995, onward, [])] * 3)
        assert [draft[0] for draft in cut] == [draft[0][: depth + (onward == 1.0)] for draft in whole]
    row = min(exp(gains[0]) for _, _, gains, _ in whole)
    rows = drafted(native_decoder(KERNELS[0], "bf16"), orders, [(1.0, row * 0.99, 0.0, 1e-6, [])] * 3)
    assert [draft[0] for draft in rows] == [draft[0][:1] for draft in whole]
    assert all(draft[3] == [-1] for draft in rows)  # kept, but not run


def test_of_a_tree_the_nodes_stay_that_are_worth_their_rows():
    [(tokens, parents, gains, places)] = drafted(native_decoder(KERNELS[0], "bf16"), TREES[:1])
    scores = list(gains)
    for node, parent in enumerate(parents):
        scores[node] += scores[parent] if parent >= 0 else 0.0
    for least in sorted(scores)[1:]:
        row = exp(least - 1e-9)
        [(kept, *_, run)] = drafted(native_decoder(KERNELS[0], "bf16"), TREES[:1], [(1.0, row, 0.0, 1.0, [])])
        worthy = [node for node, score in enumerate(scores) if score >= least]
        assert kept == [tokens[node] for node in worthy]
        assert [place >= 0 for place in run] == [places[node] >= 0 for node in worthy]


def test_no_drafts():
    decoder = native_decoder(KERNELS[0], "fp32")
    assert native.draft(decoder.program, decoder.cache, [], None, None, VOCABULARY) == []
