"""Typical acceptance keeps what the target finds plausible, and the longest path of it."""

import pytest
import toy_models as toy

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.lossy_typical import lossy_typical


class RowDraws:
    """Draws whose token at a row is the row."""

    def token(self, row):
        return row


def kept(tree, *laws):
    return lossy_typical(tree, lambda row: toy.law_of(*laws[row]), RowDraws())


@pytest.mark.parametrize(
    ("law", "keeps"),
    [
        ([0.1, 0.9], True),  # above 0.09
        ([0.085, 0.915], False),
        ([0.05] * 20, True),  # so flat a law finds it typical: the bar is 0.3 / 20
        ([0.014, *[0.986 / 19] * 19], False),
    ],
)
def test_the_bar_is_lower_where_the_target_is_unsure(law, keeps):
    assert kept(DraftTree.chain([0], "toy"), law) == (Verdict([0], 1) if keeps else Verdict([], 0))


def test_the_longest_path_wins_over_likelier_ones():
    tree = DraftTree(tokens=[0, 1, 0], parents=[-1, -1, 1], drafters=["toy"] * 3)
    assert kept(tree, [0.8, 0.2], None, [0.5, 0.5]) == Verdict([1, 2], 3)


def test_the_likelier_of_equally_long_paths_wins():
    tree = DraftTree(tokens=[0, 1, 0, 0], parents=[-1, -1, 0, 1], drafters=["toy"] * 4)
    assert kept(tree, [0.6, 0.4], [0.2, 0.8], [0.9, 0.1]) == Verdict([1, 3], 4)


def test_nothing_below_a_refused_draft_is_looked_at():
    tree = DraftTree(tokens=[0, 0], parents=[-1, 0], drafters=["toy"] * 2)
    assert kept(tree, [0.01, 0.99], None) == Verdict([], 0)
