"""How sure a growing draft says it is: the drafter's own share for each node, given the node's parent."""

from math import log, prod

import pytest
import torch

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.growing_tree import GrowingTree, going_on
from foredraft.drafters.growth import FREE, Growth
from foredraft.drafters.level_ranking import grow, scattered
from foredraft.drafters.ranked_tree import growing_tree
from foredraft.model.slot_pool import SlotPool
from foredraft.sampling.noise import gumbel
from foredraft.sampling.request_sampler import RequestSampler

V, PROMPT, SEED, DEPTH = 7, [5, 4, 3], 3, 3
GREEDY, SEEDED = {}, {"temperature": 1.0}
SHAPES = {
    "chain": {},
    "tree": {"tree_size": 9},
    "fixed tree": {"speculative_token_tree": "[[0], [1], [0, 0], [0, 2], [1, 0], [0, 2, 1]]"},
}


def logits_after(path: tuple[int, ...]) -> torch.Tensor:
    """What the drafter says after some drafted tokens, [V]."""
    generator = torch.Generator().manual_seed(sum((V + 1) ** place * (token + 1) for place, token in enumerate(path)))
    return 2 * torch.randn(V, generator=generator)


def begun(params: dict, growth: Growth = FREE, **speculation) -> GrowingTree:
    """A draft with nothing in it yet."""
    config = SpeculationConfig(num_speculative_tokens=DEPTH, **speculation)
    sampling = SamplingParams(**params)
    request = Request(prompt=PROMPT, params=sampling, speculation=config, seed=SEED)
    sampler = RequestSampler(sampling, seed=SEED, prompt=PROMPT, vocabulary=Vocabulary(rows=V, size=V))
    pool = SlotPool(64)
    table = pool.open(64)
    pool.keep(table, pool.take(table, len(PROMPT)))
    nodes = config.nodes if config.branches else DEPTH
    limits = {"nodes": nodes, "depth": DEPTH, "growth": growth}
    task = DraftTask(request=request, speculation=config, sampler=sampler, table=table, **limits)
    return growing_tree(task, pool, "drafter", len(PROMPT))


def grown(params: dict, growth: Growth = FREE, **speculation) -> GrowingTree:
    draft = begun(params, growth, **speculation)
    draft.extend(logits_after(())[None])
    while going_on([draft]):
        draft.extend(torch.stack([logits_after(tuple(draft.path_tokens(node))) for node in draft.frontier]))
    return draft


def share(tree: DraftTree, node: int, params: dict) -> float:
    """Softmax share of a node among what was valued below its parent, the position's noise included."""
    *above, token = tree.path_tokens(node)
    noise = gumbel(SEED, [len(PROMPT) + len(above)], V)[0] if params else 0
    return (logits_after(tuple(above)) + noise).softmax(-1)[token].item()


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("shape", SHAPES)
def test_chances_are_shares_given_the_parent(shape, params):
    tree = grown(params, **SHAPES[shape]).finished()
    assert tree.chances == pytest.approx([share(tree, node, params) for node in range(len(tree))], rel=1e-5)
    assert len(tree) >= DEPTH and max(tree.depths) == DEPTH and all(0 < chance <= 1 for chance in tree.chances)


def test_products_of_chances_decide_who_stays():
    draft = grown(GREEDY, tree_size=6)
    scores = sorted((node.score for node in draft.nodes), reverse=True)
    tree = draft.finished()
    products = [log(prod(tree.chances[above] for above in tree.path(node))) for node in range(len(tree))]
    assert sorted(products, reverse=True) == pytest.approx(scores[:6], rel=1e-4) and len(scores) > 6


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_chain_ends_where_its_path_is_too_unlikely_to_go_on(params):
    whole = grown(params).finished()
    for length in range(1, DEPTH):
        least = prod(whole.chances[:length]) * 1.01
        for growth in (Growth(run=least), Growth(0.5, row=least**0.5 / 2, run=least**0.5 / 2)):
            assert grown(params, growth).finished().tokens == whole.tokens[:length]
        unworthy = grown(params, Growth(row=least)).finished()
        assert unworthy.tokens == whole.tokens[: length - 1], "a token that is not worth its row is not verified"
    low = min(whole.chances[:1])
    [kept] = grown(params, Growth(row=low * 0.99, onward=0.5)).finished().tokens
    assert kept == whole.tokens[0], "what is worth its row may have no child that is"
    drawn = grown(SEEDED, Growth(row=0.99), rejection_sample_method="standard").finished()
    assert len(drawn) == DEPTH, "what was drawn must not decide how many are"


@pytest.mark.parametrize("shape", SHAPES)
def test_drawn_tokens_have_no_chances(shape):
    """A law must not be taken for knowledge of the token that was drawn."""
    rule = "standard" if shape == "chain" else "tree"
    tree = grown(SEEDED, rejection_sample_method=rule, **SHAPES[shape]).finished()
    assert len(tree) >= DEPTH and tree.laws is not None and tree.chances is None


def test_a_certain_drafter_says_so():
    draft = grown(GREEDY)
    one = GrowingTree(draft.task, draft.choice, draft.pool, "drafter", len(PROMPT))
    only = torch.full((1, V), float("-inf"))
    only[0, 2] = 8.0
    one.extend(only)
    one.frontier = []
    assert one.finished().tokens == [2] and one.finished().chances == [1.0]


@pytest.mark.parametrize("params", [GREEDY, SEEDED, {"temperature": 0.6}], ids=["greedy", "seeded", "cool"])
@pytest.mark.parametrize("shape", SHAPES)
def test_ranking_levels_together_grows_the_same_trees(shape, params):
    """Two requests at once, whose logits are of a vocabulary of some of the target's tokens."""
    ids = torch.tensor([0, 2, 3, 5, 6])
    together, alone = ([begun(params, **SHAPES[shape]) for _ in range(2)] for _ in range(2))
    assert all(draft.plain for draft in together)
    going = together
    while going:
        rows = [logits_after(tuple(draft.path_tokens(node)))[ids] for draft in going for node in draft.parents]
        grow(going, torch.stack(rows), ids)
        going = going_on(going)
    for draft in alone:
        frontier = [draft]
        while frontier:
            rows = [logits_after(tuple(draft.path_tokens(node)))[ids] for node in draft.parents]
            draft.extend(scattered(torch.stack(rows), ids, V))
            frontier = going_on([draft])
    for one, other in zip(together, alone, strict=True):
        got, wanted = one.finished(), other.finished()
        assert (got.tokens, got.parents, got.slots) == (wanted.tokens, wanted.parents, wanted.slots)
        assert got.chances == pytest.approx(wanted.chances, rel=1e-3) and one.ran == other.ran
