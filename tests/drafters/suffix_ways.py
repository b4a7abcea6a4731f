"""The two ways to suffix trees, for tests that hold for both: written in Python, and by the native extension."""

import pytest

from foredraft.drafters import suffix_guess
from foredraft.drafters.suffix_guess import Guess, GuessLimits
from foredraft.drafters.suffix_tree import SuffixTree
from foredraft.drafters.suffix_trees import suffix_trees
from foredraft.model.native_runtime import OFF, VARIABLE, extension, installed


class PythonWay:
    setting = OFF
    make = staticmethod(SuffixTree)
    guesses = staticmethod(suffix_guess.guesses)
    best_guess = staticmethod(suffix_guess.best_guess)

    @staticmethod
    def is_empty(tree: SuffixTree) -> bool:
        return (tree.root.children, tree.texts, tree.ends) == ({}, {}, {})


class NativeWay:
    setting = ""

    def __init__(self) -> None:
        self.make, self.guesses = extension().SuffixTree, extension().suffix_guesses

    def best_guess(self, tree, context: list[int], limits: GuessLimits, to_beat: float = 0.0) -> Guess:
        tokens, parents, counts, matched, score = extension().best_suffix_guess(tree, context, limits, to_beat)
        return Guess(tokens=tokens, parents=parents, counts=counts, matched=matched, score=score)

    def is_empty(self, tree) -> bool:
        return (tree.strings, tree.texts) == (0, {})


native_is_here = installed() and hasattr(extension(), "suffix_guesses")
needs_native = pytest.mark.skipif(not native_is_here, reason="foredraft_native has no suffix trees or is not installed")
PYTHON, NATIVE = PythonWay(), NativeWay() if native_is_here else PythonWay()
each_way = pytest.mark.parametrize(
    "way", [pytest.param(PYTHON, id="python"), pytest.param(NATIVE, id="native", marks=needs_native)]
)


def choose(way: PythonWay | NativeWay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have drafters that are made from now on take this way."""
    monkeypatch.setenv(VARIABLE, way.setting)
    assert suffix_trees().make is way.make
