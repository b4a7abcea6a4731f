"""Lookahead's window: guesses of tokens still ahead, which every step follows up by one token each."""

from collections.abc import Callable, Collection

from foredraft.core.draft_tree import ROOT, DraftTree


class LookaheadWindow:
    """Columns of tokens, all of one height: one at first, `ngram` - 1 once the window is full.

    The paper draws rows and a mask of its own. Seen by its columns the mask is a tree: the first row is a chain below
    the root, and from each of its tokens the rest of the column hangs as a chain. A node's depth is the distance from
    the root that the paper gives the token: the token of row r and column c, both from 0, is at depth 1 + c + r.

    In every step each column is continued by the token the target finds likeliest after its last one. A column that
    reaches `ngram` tokens is an n-gram; it is handed out, and its first token leaves. So rows move up by one a step.
    Columns stay where they are, however many tokens a step has written: moving them along with the text was measured
    and gains nothing, because an n-gram is found by its first token and not by its place.

    Attributes:
        ngram: Tokens of an n-gram.
        columns: The tokens, by column from the first row down.
        draw: Gives a token to start a column with, or to put in place of one that ends a text.
        ends: Tokens that end a text: nothing sensible follows them.
    """

    def __init__(self, *, width: int, ngram: int, draw: Callable[[], int], ends: Collection[int]) -> None:
        self.ngram, self.draw, self.ends = ngram, draw, ends
        self.columns = [[draw()] for _ in range(width)]

    @property
    def height(self) -> int:
        """Tokens of every column."""
        return len(self.columns[0])

    @property
    def depth(self) -> int:
        """Depth of its deepest node below the root."""
        return len(self.columns) + self.height - 1

    @property
    def tokens(self) -> list[int]:
        """Tokens of its nodes in the order `hang` adds them, [columns x height]."""
        return [token for column in self.columns for token in column]

    def hang(self, tree: DraftTree, drafter: str) -> None:
        """Add the window to a tree of guesses as its probes."""
        first = ROOT
        for column in self.columns:
            node = first = tree.add(column[0], first, drafter)
            for token in column[1:]:
                node = tree.add(token, node, drafter)
        tree.probes = len(self.columns) * self.height

    def advance(self, successors: list[int]) -> list[tuple[int, ...]]:
        """Continue every column; returns the n-grams that are complete, none while the window fills.

        `successors` are the target's likeliest tokens after each node, in the order of `tokens`.
        """
        assert len(successors) == len(self.columns) * self.height
        bottoms = successors[self.height - 1 :: self.height]
        grown = [[*column, token] for column, token in zip(self.columns, bottoms, strict=True)]
        full = len(grown[0]) == self.ngram
        self.columns = [[*column[full:-1], self.going_on(column[-1])] for column in grown]
        return [tuple(column) for column in grown] if full else []

    def going_on(self, token: int) -> int:
        return self.draw() if token in self.ends else token
