"""Shapes of draft trees: published ones, the user's own, and their limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tree_paths import paths_of

from foredraft.core.errors import ConfigError
from foredraft.core.published_trees import PUBLISHED
from foredraft.core.static_tree import StaticTree, token_tree

SIZES = dict.fromkeys(PUBLISHED, 63) | {"eagle_25": 25}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_trees(name):
    tree = token_tree(name)
    paths = paths_of(tree)
    assert len(tree) == len(set(paths)) == SIZES[name]
    assert ["".join(map(str, path)) for path in paths] == PUBLISHED[name].split()
    assert all(path[:-1] in paths[:node] or len(path) == 1 for node, path in enumerate(paths))
    assert all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths for path in paths)  # no rank is passed over


def test_facts_of_two_published_trees():
    """Depth and root children as the papers draw them."""
    medusa, eagle = token_tree("mc_sim_7b_63"), token_tree("eagle_25")
    assert (max(medusa.depths), medusa.width, medusa.parents.count(-1)) == (4, 10, 10)
    assert (max(eagle.depths), eagle.width, eagle.parents.count(-1)) == (5, 4, 4)


def test_a_list_of_paths_in_any_order():
    tree = token_tree("[[0, 1], [1], [0], [0, 1, 2]]")
    assert paths_of(tree) == [(0,), (0, 1), (1,), (0, 1, 2)]
    assert tree.depths == [1, 2, 1, 3] and tree.width == 3
    assert tree.families == [(-1, [0, 2]), (0, [1]), (1, [3])]


def test_chain():
    chain = StaticTree.chain(3)
    assert paths_of(chain) == [(0,), (0, 0), (0, 0, 0)] and chain.width == 1
    assert len(StaticTree.chain(0)) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mc_sim_7b_36", "did you mean 'mc_sim_7b_63'"),
        ("[[0], [0,", "not JSON"),
        ("[]", "empty list"),
        ("[[0], []]", "holds []"),
        ("[[0], [0, -1]]", "holds [0, -1]"),
        ("[[0], [256]]", "from 0 to 255"),
        ("[[0], [true]]", "holds [True]"),
        ("[[0], 1]", "holds 1"),
        ("[[0], [1], [0]]", "[0] twice"),
        ("[[0], [1, 0]]", "[1, 0] without [1]"),
    ],
)
def test_a_bad_tree_is_refused_in_one_line(text, message):
    with pytest.raises(ConfigError, match="speculative_token_tree") as refusal:
        token_tree(text)
    assert message in str(refusal.value) and "\n" not in str(refusal.value)


@given(st.sampled_from(sorted(PUBLISHED)), st.integers(0, 70), st.integers(0, 6), st.none() | st.integers(1, 11))
def test_a_cut_keeps_the_first_nodes_that_fit(name, nodes, depth, width):
    tree = token_tree(name)
    fitting = [path for path in paths_of(tree) if len(path) <= depth and (width is None or max(path) < width)]
    assert paths_of(tree.cut(nodes=nodes, depth=depth, width=width)) == fitting[:nodes]
