"""Every lossless rule keeps the target's law to the last bit: the joint law of what it writes, by enumeration."""

import pytest
import toy_models as toy

from foredraft.core.draft_tree import DraftTree
from foredraft.verification.enumeration import mean_accepted, output_law, plain_law
from foredraft.verification.verifier import rules

LENGTH = 3
CHAIN_ONLY = ("standard", "block")
LOSSLESS = [name for name, rule in rules.items() if rule.lossless]
TREE_RULES = [name for name in LOSSLESS if name not in CHAIN_ONLY]

MODELS = {  # target, drafter
    "unrelated": (toy.toy_model(116), toy.toy_model(117)),
    "truncated target": (toy.toy_model(3, zeros=1), toy.toy_model(4)),
    "truncated drafter": (toy.toy_model(5), toy.toy_model(6, zeros=1)),
    "both truncated": (toy.toy_model(7, zeros=1), toy.toy_model(8, zeros=1)),
    "equal": (toy.toy_model(9), toy.toy_model(9)),
    "greedy target": (toy.toy_model(10, zeros=2), toy.toy_model(11)),
    "greedy drafter": (toy.toy_model(12), toy.toy_model(13, zeros=2)),
}
TREES = {
    "two children": {(): 2},
    "all children": {(): 3},
    "left deep": {(): 2, (0,): 2},
    "right deep": {(): 2, (1,): 2},
    "two by two": {(): 2, (0,): 1, (1,): 2},
    "three levels": {(): 2, (1,): 1, (1, 0): 1},
}


def error(accept, draft, target) -> float:
    """Largest difference between the joint law of written tokens and plain sampling's."""
    joint = output_law(accept, draft=draft, target=target, length=LENGTH)
    return (joint - plain_law(target, LENGTH)).abs().max().item()


def models(function):
    return pytest.mark.parametrize(("target", "drafter"), MODELS.values(), ids=MODELS.keys())(function)


def trees(function):
    return pytest.mark.parametrize("shape", TREES.values(), ids=TREES.keys())(function)


@models
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSLESS)
def test_sampled_chains(name, length, target, drafter):
    assert error(rules[name].accept, toy.sampled_chain(drafter, length), target) < 1e-12


@models
@pytest.mark.parametrize("name", LOSSLESS)
def test_chains_that_end_on_a_token_of_their_own(name, target, drafter):
    draft = toy.sampled_chain(drafter, 3, stops=lambda token: token == 1)
    assert error(rules[name].accept, draft, target) < 1e-12


@models
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("name", LOSSLESS)
def test_chains_of_likeliest_tokens(name, length, target, drafter):
    assert error(rules[name].accept, toy.likeliest_tree(drafter, toy.chain_shape(length)), target) < 1e-12


@models
@trees
@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("name", TREE_RULES)
def test_sampled_trees(name, replacement, shape, target, drafter):
    assert error(rules[name].accept, toy.sampled_tree(drafter, shape, replacement=replacement), target) < 1e-12


@pytest.mark.parametrize("shape", [{(): 3}, {(): 3, (1,): 1}], ids=["three children", "deep in the middle"])
@pytest.mark.parametrize("seed", [20, 30])
@pytest.mark.parametrize("name", ["tree", "traversal"])
def test_sampled_trees_over_four_tokens(name, seed, shape):
    target, drafter = toy.toy_model(seed, tokens=4), toy.toy_model(seed + 1, tokens=4)
    assert error(rules[name].accept, toy.sampled_tree(drafter, shape, replacement=False), target) < 1e-12


@models
@trees
@pytest.mark.parametrize("name", TREE_RULES)
def test_trees_of_likeliest_tokens(name, shape, target, drafter):
    assert error(rules[name].accept, toy.likeliest_tree(drafter, shape), target) < 1e-12


@pytest.mark.parametrize("name", rules)
def test_an_empty_draft_is_plain_decoding(name):
    assert error(rules[name].accept, lambda branch: DraftTree(), toy.toy_model(1)) == 0


@pytest.mark.parametrize("name", rules)
def test_at_temperature_0_only_the_likeliest_token_is_written(name):
    target = toy.same_everywhere(1.0, 0.0, 0.0)
    draft = toy.sampled_chain(toy.same_everywhere(0.3, 0.4, 0.3), 3)
    joint = output_law(rules[name].accept, draft=draft, target=target, length=LENGTH)
    assert joint[0, 0, 0].item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", rules)
def test_at_temperature_0_every_rule_keeps_as_much(name):
    target, draft = toy.toy_model(10, zeros=2), toy.sampled_chain(toy.toy_model(11), 3)
    expected = mean_accepted(rules["match"].accept, draft=draft, target=target)
    assert mean_accepted(rules[name].accept, draft=draft, target=target) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("shape", [toy.chain_shape(2), TREES["two by two"]])
def test_typical_acceptance_is_lossy_even_where_laws_agree(shape):
    target, drafter = MODELS["equal"]
    assert error(rules["lossy-typical"].accept, toy.likeliest_tree(drafter, shape), target) > 1e-3
