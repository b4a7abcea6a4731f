"""How much the rules accept, in expectation and exactly."""

from fractions import Fraction

import pytest
import toy_models as toy
from test_losslessness import MODELS, TREE_RULES, TREES, models, trees

from foredraft.verification.enumeration import mean_accepted
from foredraft.verification.verifier import rules


def accepted(name, draft, target):
    return mean_accepted(rules[name].accept, draft=draft, target=target)


@pytest.mark.parametrize(("name", "expected"), [("standard", Fraction(10, 9)), ("block", Fraction(11, 9))])
def test_the_example_of_the_block_verification_paper(name, expected):
    target, drafter = toy.same_everywhere(1 / 3, 2 / 3), toy.same_everywhere(2 / 3, 1 / 3)
    assert accepted(name, toy.sampled_chain(drafter, 2), target) == pytest.approx(float(expected), abs=1e-12)


@models
def test_block_accepts_no_less_than_standard_and_traversal_of_a_chain_is_block(target, drafter):
    draft = toy.sampled_chain(drafter, 3)
    block = accepted("block", draft, target)
    assert block >= accepted("standard", draft, target) - 1e-12
    assert accepted("traversal", draft, target) == pytest.approx(block, abs=1e-12)
    assert accepted("tree", draft, target) == pytest.approx(accepted("standard", draft, target), abs=1e-12)


def test_whole_paths_are_accepted_more_often_where_laws_differ():
    target, drafter = MODELS["unrelated"]
    chain = toy.sampled_chain(drafter, 3)
    assert accepted("block", chain, target) > accepted("standard", chain, target) + 1e-3
    tree = toy.sampled_tree(drafter, TREES["two by two"], replacement=False)
    assert accepted("traversal", tree, target) > accepted("tree", tree, target) + 1e-3


@models
@trees
@pytest.mark.parametrize("replacement", [True, False])
def test_traversal_accepts_no_less_than_rejection_down_the_tree(replacement, shape, target, drafter):
    draft = toy.sampled_tree(drafter, shape, replacement=replacement)
    assert accepted("traversal", draft, target) >= accepted("tree", draft, target) - 1e-12


@models
@trees
@pytest.mark.parametrize("name", TREE_RULES)
def test_rules_accept_alike_where_nothing_was_sampled(name, shape, target, drafter):
    draft = toy.likeliest_tree(drafter, shape)
    assert accepted(name, draft, target) == pytest.approx(accepted("match", draft, target), abs=1e-12)


@pytest.mark.parametrize("name", ["standard", "block", "tree", "traversal"])
def test_equal_laws_accept_everything(name):
    target, drafter = MODELS["equal"]
    assert accepted(name, toy.sampled_chain(drafter, 3), target) == pytest.approx(3, abs=1e-12)


@pytest.mark.parametrize("name", ["tree", "traversal"])
def test_every_token_as_a_child_is_always_accepted(name):
    draft = toy.sampled_tree(toy.toy_model(2), TREES["all children"], replacement=False)
    assert accepted(name, draft, toy.toy_model(1)) == pytest.approx(1, abs=1e-12)
