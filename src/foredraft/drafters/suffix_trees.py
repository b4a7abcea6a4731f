"""The suffix trees that serve: those of the native extension, or where it cannot be used the ones in Python.

Both count, guess and forget alike, bit for bit; a native guess takes a few microseconds.
"""

from collections.abc import Callable
from dataclasses import dataclass

from foredraft.drafters.suffix_guess import Drafted, Order, guesses
from foredraft.drafters.suffix_tree import SuffixTree
from foredraft.model.native_runtime import helpers


@dataclass(frozen=True, slots=True)
class SuffixTrees:
    """One of the two.

    Attributes:
        make: An empty tree of some depth; a native one has the methods of `SuffixTree` that add, extend and remove.
        guesses: `suffix_guess.guesses`, for such trees.
    """

    make: Callable[[int], SuffixTree]
    guesses: Callable[[SuffixTree, list[Order]], list[Drafted]]


def suffix_trees() -> SuffixTrees:
    native = helpers()
    return SuffixTrees(SuffixTree, guesses) if native is None else SuffixTrees(native.SuffixTree, native.suffix_guesses)
