"""The verifier gives rules the request's own tokens and laws, and randomness of their own."""

import random

import pytest
import torch

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.core.speculation_config import ACCEPTANCE_RULES
from foredraft.verification.verifier import Rule, accept, inverse_cdf, rules

V = 4
TREE = DraftTree(tokens=[1, 2, 3, 0, 1], parents=[-1, -1, 0, 0, 1], drafters=["toy"] * 5)
PATHS = [[], [1], [2], [1, 3], [1, 0], [2, 1]]
LAWS_RULES = [name for name, rule in rules.items() if rule.needs_laws]


class FakeSampler:
    """Draws `tokens[depth]` at each depth and counts what it is asked for; its law is the scores themselves."""

    def __init__(self, tokens=(0, 0, 0, 0), coins=()):
        self.tokens, self.coins = tokens, iter(coins)
        self.paths, self.drawn, self.laws, self.uniforms = [], [], 0, []

    def scores(self, logits, paths):
        self.paths.append(paths)
        return logits

    def draw(self, scores, depths):
        self.drawn.append(depths)
        assert len(scores) == len(depths)
        return [self.tokens[depth] for depth in depths]

    def law(self, scores):
        self.laws += len(scores)
        return scores.double()

    def uniform(self, stream, index):
        self.uniforms.append((stream, index))
        return next(self.coins)


class Untouchable:
    """A sampler that must not be asked for anything."""


def flat_logits(tree):
    return torch.full((len(tree) + 1, V), 1 / V)


def test_the_rules_are_those_a_config_may_name():
    assert tuple(rules) == ACCEPTANCE_RULES
    assert all(name == rule.name and rule.lossless != ("lossy" in name) for name, rule in rules.items())


def test_match_draws_all_rows_at_once_under_the_path_of_each():
    sampler = FakeSampler(tokens=[1, 3, 2])
    verdict = accept(rules["match"], TREE, sampler, flat_logits(TREE))
    assert verdict == Verdict(path=[0, 2], token=2)
    assert sampler.paths == [PATHS]
    assert sampler.drawn == [[0, 1, 1, 2, 2, 2]]
    assert sampler.laws == 0 and sampler.uniforms == []


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ([1, 0, 9, 9, 2, 9], Verdict([0, 3], 2)),
        ([2, 9, 1, 9, 9, 3], Verdict([1, 4], 3)),
        ([2, 9, 0, 9, 9, 9], Verdict([1], 0)),
        ([3, 9, 9, 9, 9, 9], Verdict([], 3)),
    ],
)
def test_match_takes_tokens_that_are_chosen_already(chosen, expected):
    assert accept(rules["match"], TREE, Untouchable(), flat_logits(TREE), chosen) == expected


@pytest.mark.parametrize("name", rules)
def test_an_empty_draft_costs_one_draw(name):
    sampler = FakeSampler(tokens=[3])
    assert accept(rules[name], DraftTree(), sampler, flat_logits(DraftTree())) == Verdict([], 3)
    assert (sampler.paths, sampler.drawn, sampler.laws, sampler.uniforms) == ([[[]]], [[0]], 0, [])
    assert accept(rules[name], DraftTree(), Untouchable(), flat_logits(DraftTree()), [2]) == Verdict([], 2)


@pytest.mark.parametrize("name", ["standard", "block", "tree", "traversal"])
def test_coins_and_residuals_have_a_stream_of_their_own(name):
    draft = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    tree = DraftTree.chain([0, 0], "toy", laws=[draft, draft, None])
    sampler = FakeSampler(coins=[0.5, 0.5, 0.5])
    verdict = accept(rules[name], tree, sampler, flat_logits(tree))
    assert verdict == Verdict([], 2)  # the residual is even over 1, 2 and 3
    assert sampler.uniforms == [("accept", i) for i in range(len(sampler.uniforms))]
    assert sampler.drawn == []


@pytest.mark.parametrize("name", LAWS_RULES)
def test_the_token_after_a_draft_kept_whole_is_the_position_s_own(name):
    logits = torch.zeros(3, V)
    logits[0, 2] = logits[1, 1] = logits[2, 0] = 1.0
    sampler = FakeSampler(tokens=[0, 0, 3], coins=[0.5, 0.5])
    verdict = accept(rules[name], DraftTree.chain([2, 1], "toy"), sampler, logits, [2, 1, 0])
    assert verdict == Verdict([0, 1], 3)
    assert sampler.drawn == [[2]]
    assert sampler.paths == [[[], [2], [2, 1]]]


def test_a_rule_that_needs_no_laws_gets_none():
    rule = Rule(name="mine", accept=lambda tree, law, draws: law(0), needs_laws=False)
    with pytest.raises(AssertionError, match="needs no laws"):
        accept(rule, TREE, FakeSampler(), flat_logits(TREE))


def test_duplicate_siblings_and_deep_trees_match_as_plain_decoding_would():
    chance = random.Random(0)
    for _ in range(200):
        tree = DraftTree()
        for node in range(chance.randrange(1, 30)):
            tree.add(chance.randrange(V), chance.randrange(-1, node), "toy")
        plain = [chance.randrange(V) for _ in range(31)]
        verdict = accept(rules["match"], tree, FakeSampler(tokens=plain), flat_logits(tree))
        written = [*(tree.tokens[node] for node in verdict.path), verdict.token]
        assert written == plain[: len(written)]
        assert tree.path(verdict.path[-1] if verdict.path else -1) == verdict.path


@pytest.mark.parametrize(("u", "token"), [(0.0, 1), (0.249, 1), (0.25, 3), (0.999, 3), (1.0, 3)])
def test_quantiles_skip_tokens_without_weight(u, token):
    assert inverse_cdf(torch.tensor([0, 1, 0, 3, 0], dtype=torch.float64), u) == token


def test_a_draft_its_own_law_rules_out_is_noticed():
    law = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    tree = DraftTree.chain([0], "toy", laws=[law, None])
    with pytest.raises(AssertionError, match="token 0 was drafted"):
        accept(rules["standard"], tree, FakeSampler(coins=[0.5]), flat_logits(tree))
