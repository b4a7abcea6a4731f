"""A fixed draft tree in a request's config: checked before anything runs, counted when slots are promised."""

import pytest

from foredraft import ConfigError, SpeculationConfig
from foredraft.core.speculation_config import MAX_NODES

SMALL = "[[0], [1], [0, 0], [0, 1], [0, 0, 0]]"


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        ({"speculative_token_tree": "mc_sim_7b_63"}, 63),
        ({"speculative_token_tree": "eagle_25"}, 25),
        ({"speculative_token_tree": SMALL}, 5),
        ({"speculative_token_tree": SMALL, "num_speculative_tokens": 2}, 4),
        ({"speculative_token_tree": SMALL, "tree_size": 3}, 3),
        ({"speculative_token_tree": SMALL, "tree_size": 64}, 5),
    ],
)
def test_slots_are_promised_for_the_trees_own_nodes(options, nodes):
    config = SpeculationConfig(**options)
    assert config.branches and len(config.fixed_tree) == config.nodes == config.scratch_nodes == nodes


def test_without_the_key_nothing_changes():
    chain = SpeculationConfig(method="medusa", num_speculative_tokens=4)
    tree = SpeculationConfig(method="medusa", tree_size=12, tree_width=2)
    assert (chain.branches, chain.fixed_tree, chain.nodes, chain.scratch_nodes) == (False, None, 4, 4)
    assert (tree.branches, tree.fixed_tree, tree.nodes, tree.scratch_nodes) == (True, None, 12, 22)


WIDE = str([[rank] for rank in range(256)] + [[0, 0]])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("mc_sim_7b_36", "did you mean 'mc_sim_7b_63'"),
        ("[[0], [0,", "not JSON"),
        ("[[0, 0]]", r"\[0, 0\] without \[0\]"),
        ([[0]], "must be a string"),
        (WIDE, f"257 nodes; a draft holds {MAX_NODES} at most"),
    ],
)
def test_a_bad_tree_is_refused_with_its_config(tree, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        SpeculationConfig(method="eagle", speculative_token_tree=tree)
    assert "speculative_token_tree" in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_large_tree_may_be_cut():
    assert SpeculationConfig(speculative_token_tree=WIDE, tree_size=100).nodes == 100


@pytest.mark.parametrize("rule", ["standard", "block"])
def test_chain_rules_take_no_fixed_tree(rule):
    with pytest.raises(ConfigError, match="verifies chains"):
        SpeculationConfig(speculative_token_tree=SMALL, rejection_sample_method=rule)


def test_requests_with_other_trees_share_a_drafter():
    one, other = SpeculationConfig(speculative_token_tree=SMALL), SpeculationConfig(speculative_token_tree="eagle_25")
    assert one.drafter_key == other.drafter_key == SpeculationConfig().drafter_key
