"""The best tree under laws that do not look at each other, against every tree there is."""

from itertools import product
from math import exp, inf, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tree_paths import paths_of

from foredraft.drafters.marginal_tree import best_first, measured_tree

shares = st.lists(st.floats(0.01, 1.0), min_size=1, max_size=3).map(lambda row: sorted(row, reverse=True))
laws = st.lists(shares, min_size=1, max_size=3)


def logs(rows):
    return [[log(share) if share else -inf for share in row] for row in rows]


def worth(path, rows) -> float:
    value = 1.0
    for depth, rank in enumerate(path):
        value *= rows[depth][rank]
    return value


def best_worth(rows, nodes: int) -> float:
    """Largest sum of path chances of any prefix-closed set of `nodes` paths, by trying all of them."""
    paths = [path for depth in range(1, len(rows) + 1) for path in product(*(range(len(row)) for row in rows[:depth]))]
    best, sets = 0.0, {frozenset()}
    for _ in range(min(nodes, len(paths))):
        sets = {known | {path} for known in sets for path in paths if path not in known and closed(path, known)}
        best = max(sum(worth(path, rows) for path in known) for known in sets)
    return best


def closed(path, known) -> bool:
    return len(path) == 1 or path[:-1] in known


@settings(deadline=None, max_examples=60)
@given(laws, st.integers(1, 5))
def test_no_tree_is_better(rows, nodes):
    paths = paths_of(best_first(logs(rows), nodes))
    assert len(set(paths)) == len(paths) <= nodes
    assert sum(worth(path, rows) for path in paths) == pytest.approx(best_worth(rows, nodes))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.integers(1, 40))
def test_ties_lose_no_parent(widths, nodes):
    """All guesses certain: every node ties with every other, the worst case for a sort by score."""
    paths = paths_of(best_first([[0.0] * width for width in widths], nodes))
    possible = sum(exp(sum(map(log, widths[:depth]))) for depth in range(1, len(widths) + 1))
    assert len(paths) == min(nodes, round(possible))
    assert all(closed(path, paths[:node]) for node, path in enumerate(paths))
    assert [len(path) for path in paths] == sorted(map(len, paths))


def test_one_guess_a_depth_is_a_chain():
    assert paths_of(best_first(logs([[0.5], [0.9], [0.1]]), 8)) == [(0,), (0, 0), (0, 0, 0)]
    sure, flat = [0.99, 0.01], [0.5, 0.5]
    assert paths_of(best_first(logs([sure] * 4), 4)) == [(0,), (0, 0), (0, 0, 0), (0, 0, 0, 0)]
    assert paths_of(best_first(logs([flat] * 4), 2)) == [(0,), (1,)]


def test_impossible_guesses_are_left_out():
    assert paths_of(best_first([[0.0, -inf], [-inf, -inf]], 8)) == [(0,)]
    assert len(best_first([[-inf]], 8)) == 0 and len(best_first([[0.0]], 0)) == 0


ACCURACIES = ((0.6, 0.2, 0.05), (0.4, 0.1, 0.15), (0.3, 0.0, 0.0))


def test_measured_trees_take_the_highest_products():
    every = [path for depth in (1, 2, 3) for path in product(range(3), repeat=depth)]
    best = sorted((path for path in every if worth(path, ACCURACIES)), key=lambda path: -worth(path, ACCURACIES))
    for nodes in (1, 4, 9):
        assert set(paths_of(measured_tree(ACCURACIES, nodes=nodes, depth=3, width=3))) == set(best[:nodes])
    assert (0, 2) in paths_of(measured_tree(ACCURACIES, nodes=6, depth=3, width=2))  # rank 2 was right more often


@pytest.mark.parametrize(("nodes", "depth", "width"), [(5, 2, 3), (64, 1, 2), (64, 9, 1), (64, 3, 9)])
def test_measured_trees_keep_their_limits(nodes, depth, width):
    tree = measured_tree(ACCURACIES, nodes=nodes, depth=depth, width=width)
    children = [tree.parents.count(parent) for parent in set(tree.parents)]
    assert len(tree) <= nodes and max(tree.depths) <= depth and max(children) <= width
