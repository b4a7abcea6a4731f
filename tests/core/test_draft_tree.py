"""Trees in flat arrays: merging paths, depths, children, and the statistics of what became of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.outcome import SpeculationStatistics, total

PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=8)


@given(PATHS, st.integers(1, 20))
def test_merged_paths_are_the_paths_of_the_tree(paths, limit):
    tree = DraftTree.from_paths(paths, "x", limit)
    assert len(tree) <= limit
    drafted = {tuple(tree.path_tokens(node)) for node in range(len(tree))}
    assert len(drafted) == len(tree), "two nodes with one path"
    assert drafted <= {tuple(path[:end]) for path in paths for end in range(1, len(path) + 1)}
    if sum(map(len, paths)) <= limit:
        assert {tuple(path) for path in paths} <= drafted


@given(PATHS)
def test_children_depths_and_paths_agree(paths):
    tree = DraftTree.from_paths(paths, "x", 64)
    for row, below in enumerate(tree.children):
        assert all(tree.parents[node] == row - 1 for node in below)
        assert len({tree.tokens[node] for node in below}) == len(below)
    for node in range(len(tree)):
        assert tree.depths[node] == len(tree.path(node)) and tree.path(node)[-1] == node
    assert tree.path(ROOT) == []


def test_what_was_written_leads_along_the_tree_as_far_as_there_are_nodes():
    tree = DraftTree(tokens=[5, 6, 7, 6, 8], parents=[-1, -1, 0, 1, 2], drafters=["d"] * 5)
    assert tree.along([5, 7, 8, 9]) == [0, 2, 4]
    assert tree.along([6, 6, 7]) == [1, 3]
    assert tree.along([5]) == [0] and tree.along([7, 8]) == tree.along([]) == []


def test_a_chain_is_a_tree_of_single_children():
    chain = DraftTree.chain([5, 5, 7], "x")
    assert chain.parents == [-1, 0, 1] and chain.is_chain and chain.depths == [1, 2, 3]
    assert not DraftTree.from_paths([[1, 2], [3]], "x", 9).is_chain
    assert DraftTree().is_chain and DraftTree().children == [[]]


def test_a_parent_comes_before_its_child():
    with pytest.raises(AssertionError):
        DraftTree(tokens=[1, 2], parents=[1, -1], drafters=["x", "x"])


def test_statistics_count_rounds_and_positions():
    counts = SpeculationStatistics()
    counts.record(depth=3, drafters=["a", "c", "b", "c", "c"], path=[0, 2], committed=3)
    counts.record(depth=0, drafters=[], path=[], committed=1)
    counts.record(depth=1, drafters=["a"], path=[0], committed=2)
    assert counts.tau == 2 and counts.rounds == 3 and counts.drafts == 2
    assert counts.acceptance_rate == 3 / 6
    assert counts.acceptance_per_position == [1, 1, 0]
    assert counts.accepted_by == {"a": 2, "b": 1} and counts.drafted_by == {"a": 2, "b": 1, "c": 3}
    assert total([counts, counts]).acceptance_per_position == [1, 1, 0] and total([counts, counts]).rounds == 6
    assert SpeculationStatistics().tau == 0 == SpeculationStatistics().acceptance_rate
