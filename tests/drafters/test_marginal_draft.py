"""Rows of guesses become trees: by rank, under the target's noise, after processors, or drawn from their laws."""

from collections import Counter
from math import inf, prod

import pytest
import torch

from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.static_tree import StaticTree, token_tree
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.marginal_draft import Marginals
from foredraft.drafters.marginal_tree import best_first
from foredraft.sampling.noise import gumbel
from foredraft.sampling.request_sampler import RequestSampler

V = 6
LOGITS = torch.tensor([[4.0, 3.0, 2.0, 1.0, 0.0, -1.0], [0.0, 1.0, 5.0, 4.0, 2.0, 3.0], [1.0, 6.0, 2.0, 3.0, 4.0, 5.0]])
PROMPT = [5, 4, 3]
TREE = token_tree("[[0], [0, 0], [1], [0, 1], [1, 0], [0, 0, 0], [0, 1, 1]]")


def marginals(logits=LOGITS, *, ids=None, width=4, bad_words=(), seed=0, params=None, **speculation) -> Marginals:
    params = SamplingParams(**(params or {}))
    request = Request(prompt=PROMPT, params=params, speculation=SpeculationConfig(**speculation), seed=seed)
    vocabulary = Vocabulary(rows=V, size=V)
    sampler = RequestSampler(params, seed=seed, prompt=PROMPT, vocabulary=vocabulary, bad_words=list(bad_words))
    task = DraftTask(
        request=request, speculation=request.speculation, sampler=sampler, table=None, nodes=64, depth=len(logits)
    )
    return Marginals(task, logits, ids, "heads", width)


def paths(tree) -> list[list[int]]:
    return [tree.path_tokens(node) for node in range(len(tree))]


def test_each_node_takes_the_guess_of_its_rank():
    tree = marginals().filled(TREE)
    assert paths(tree) == [[0], [0, 2], [1], [0, 3], [1, 2], [0, 2, 1], [0, 3, 5]]
    assert tree.laws is None and tree.slots is None and set(tree.drafters) == {"heads"}


@pytest.mark.parametrize("params", [{}, {"temperature": 1.0}], ids=["greedy", "seeded"])
def test_a_reduced_vocabulary_guesses_the_targets_tokens(params):
    ids = torch.tensor([1, 3, 5])
    tree = marginals(LOGITS[:, :3], ids=ids, params=params).filled(TREE)
    assert set(tree.tokens) <= set(ids.tolist()) and len(tree) == len(TREE)
    if not params:
        assert paths(tree)[:3] == [[1], [1, 5], [3]]


def test_ranks_beyond_the_vocabulary_are_left_out():
    ids = torch.tensor([1, 3])
    shape = token_tree("[[0], [1], [2], [2, 0], [0, 3]]")
    for params in ({}, {"temperature": 1.0}):  # no token, or one of probability 0
        assert sorted(paths(marginals(LOGITS[:, :2], ids=ids, params=params).filled(shape))) == [[1], [3]]


def test_seeded_guesses_are_ranked_under_the_targets_own_noise():
    seed, chain = 3, StaticTree.chain(3)
    noise = gumbel(seed, range(len(PROMPT), len(PROMPT) + 3), V)
    wanted = (LOGITS + noise).argmax(-1).tolist()
    assert marginals(seed=seed, params={"temperature": 1.0}).filled(chain).tokens == wanted
    halved = (LOGITS / 0.5 + noise).argmax(-1).tolist()
    assert marginals(seed=seed, params={"temperature": 0.5}).filled(chain).tokens == halved
    assert wanted != LOGITS.argmax(-1).tolist()


ESTIMATED = {"rtol": 0, "atol": 1e-3}  # the extension works out shares under noise to this much


def test_gains_are_log_chances():
    greedy = torch.tensor(marginals(width=V).gains)
    torch.testing.assert_close(greedy.exp().sum(-1), torch.ones(3))
    torch.testing.assert_close(greedy[0], LOGITS[0].log_softmax(-1))
    seeded = torch.tensor(marginals(width=V, params={"temperature": 1.0}, seed=3).gains)
    noisy = LOGITS + gumbel(3, range(len(PROMPT), len(PROMPT) + 3), V)
    torch.testing.assert_close(seeded, noisy.log_softmax(-1).sort(-1, descending=True).values, **ESTIMATED)


CHANCES = {"greedy": {}, "seeded": {"params": {"temperature": 1.0}, "seed": 3}, "named": {"ids": torch.arange(V)}}


@pytest.mark.parametrize("options", CHANCES.values(), ids=CHANCES)
@pytest.mark.parametrize("shape", [TREE, StaticTree.chain(3)], ids=["tree", "chain"])
def test_chances_are_those_of_the_guess_at_its_depth(options, shape):
    guesses = marginals(width=V, **options)
    tree = guesses.filled(shape)
    noise = gumbel(3, range(len(PROMPT), len(PROMPT) + 3), V) if "params" in options else 0
    shares = (LOGITS + noise).softmax(-1)
    wanted = [shares[depth - 1, token].item() for depth, token in zip(tree.depths, tree.tokens, strict=True)]
    assert tree.chances == pytest.approx(wanted, rel=1e-3) and len(tree) == len(shape)


def test_the_best_tree_holds_the_largest_products_of_chances():
    guesses = marginals(width=V)
    whole, best = (guesses.filled(best_first(guesses.gains, nodes)) for nodes in (V + V**2 + V**3, 9))
    products = [prod(whole.chances[node] for node in whole.path(node)) for node in range(len(whole))]
    kept = [prod(best.chances[node] for node in best.path(node)) for node in range(len(best))]
    assert kept == pytest.approx(sorted(products, reverse=True)[:9])


def test_drawn_tokens_have_no_chances():
    """A law must not be taken for knowledge of the token that was drawn."""
    assert marginals(**SAMPLED).filled(TREE).chances is None


def test_processors_see_the_drafted_beginning():
    """[0, 2] is a bad word: after the guess 0, the guess 2 is forbidden; after the guesses 0 and 3, 1 is not."""
    chain = StaticTree.chain(3)
    assert marginals(bad_words=[[0, 2]]).filled(chain).tokens == [0, 3, 1]
    assert marginals(bad_words=[[1, 2]]).filled(chain).tokens == [0, 2, 1]
    assert marginals(bad_words=[[0, 2], [3, 1]]).filled(chain).tokens == [0, 3, 5]
    repeated = torch.tensor([[0.0, 4.0, 3.0, 0, 0, 0]] * 3)
    assert marginals(repeated).filled(chain).tokens == [1, 1, 1]
    assert marginals(repeated, params={"presence_penalty": 2.0}).filled(chain).tokens == [1, 2, 1]


def test_forbidden_guesses_take_what_hangs_below_with_them():
    logits = torch.full((3, V), -inf)
    logits[0, 2], logits[1, :2], logits[2, 4] = 1.0, torch.tensor([1.0, 2.0]), 0.0
    assert paths(marginals(logits).filled(TREE)) == [[2], [2, 1], [2, 0], [2, 1, 4]]


UNSURE = torch.tensor([[3.0, 0, 0, 0, 0, -inf], [1.0, 0.9, -inf, -inf, -inf, -inf], [9.0, 0, 0, 0, 0, 0]])  # .83 .52 1


@pytest.mark.parametrize(("threshold", "length"), [(0.0, 3), (0.5, 3), (0.8, 2), (0.9, 1)])
def test_a_chain_stops_after_an_unsure_guess(threshold, length):
    guesses = marginals(UNSURE, draft_confidence_threshold=threshold)
    assert len(guesses.filled(StaticTree.chain(3))) == length


def test_a_drawn_chain_stops_after_an_unsure_token():
    options = {"params": {"temperature": 1.0}, "rejection_sample_method": "standard", "draft_confidence_threshold": 0.5}
    for seed in range(20):
        tree = marginals(UNSURE, seed=seed, **options).filled(StaticTree.chain(3))
        shares = [tree.laws[depth][token].item() for depth, token in enumerate(tree.tokens)]
        assert all(share >= 0.5 for share in shares[:-1]) and (len(tree) == 3 or shares[-1] < 0.5)
        assert len(tree.laws) == len(tree) + 1 and tree.laws[-1] is None


SAMPLED = {"rejection_sample_method": "tree", "tree_size": 8, "params": {"temperature": 1.0}}


def test_drawn_trees_carry_the_laws_their_tokens_came_from():
    tree = marginals(**SAMPLED).filled(TREE)
    assert len(tree) == len(TREE) and not tree.replacement
    for row, children in enumerate(tree.children):
        assert (tree.laws[row] is None) == (not children)
        depth = tree.depths[row - 1] if row else 0
        if children:
            torch.testing.assert_close(tree.laws[row], LOGITS[depth].double().softmax(-1))
            assert len({tree.tokens[child] for child in children}) == len(children)


def test_laws_follow_the_drawn_beginning_through_processors():
    for seed in range(30):
        tree = marginals(bad_words=[[0, 2]], seed=seed, **SAMPLED).filled(TREE)
        for row, children in enumerate(tree.children):
            if children and tree.depths[row - 1 : row] == [1]:
                assert (tree.laws[row][2] == 0) == (tree.tokens[row - 1] == 0)


def test_drawn_children_follow_their_law_without_replacement():
    """First children are a sample of the law, second ones of what it leaves, at the root and below it."""
    rounds, below = 3000, Counter()
    first, pairs = Counter(), Counter()
    logits = torch.tensor([[1.0, 0.5, 0.0, -inf, -inf, -inf], [0.0, 1.0, 0.5, -inf, -inf, -inf]])
    shape = token_tree("[[0], [1], [0, 0], [1, 0]]")
    for seed in range(rounds):
        tree = marginals(logits, seed=seed, **SAMPLED).filled(shape)
        first[tree.tokens[0]] += 1
        pairs[tuple(tree.tokens[:2])] += 1
        below[tuple(tree.tokens[2:])] += 1
    law, next_law = logits.softmax(-1)
    for token in range(3):
        assert first[token] / rounds == pytest.approx(law[token].item(), abs=0.04)
        for other in range(3):
            left = 0 if other == token else law[token] * law[other] / (1 - law[token])
            assert pairs[token, other] / rounds == pytest.approx(float(left), abs=0.04)
            both = next_law[token] * next_law[other]  # cousins are drawn each by itself
            assert below[token, other] / rounds == pytest.approx(both.item(), abs=0.04)


def test_a_law_with_few_tokens_gives_few_children():
    tree = marginals(**(SAMPLED | {"params": {"temperature": 1.0, "top_k": 1}})).filled(TREE)
    assert paths(tree) == [[0], [0, 2], [0, 2, 1]]
    assert [None if law is None else law.max().item() for law in tree.laws] == [1, 1, 1, None]


def test_which_nodes_there_are_does_not_depend_on_what_is_drawn():
    shapes = set()
    for seed in range(20):
        guesses = marginals(seed=seed, **SAMPLED)
        shapes.add(best_first(guesses.gains, 8))
        tree = guesses.filled(best_first(guesses.gains, 8))
        assert len(tree) == 8
    assert len(shapes) == 1
