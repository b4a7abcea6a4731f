"""Drafts that the counts of a suffix tree suggest (SuffixDecoding, Oliaro et al. 2411.04975).

A token's probability is its share of what followed the string before it, times that of the path to it. By that guesses
are chosen, as in the paper. How likely a token is to come depends no less on how long that string is and on how often
it came: what followed one token once follows it seldom again, what followed ten once mostly does. That is what a draft
states as a token's chance, and where the path's chance is worth no row the guess ends.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

from foredraft.core.draft_tree import ROOT
from foredraft.drafters.suffix_tree import Place, SuffixTree, size


class GuessLimits(NamedTuple):  # a tuple is made and read fastest; there is one for each request and step
    """How far a guess may go.

    Attributes:
        nodes: Most tokens.
        depth: Longest path.
        width: Most children of a node; 1 guesses a chain.
        factor: Most tokens for each token of context matched.
        min_prob: Least probability of a token, its path included.
        least: Least chance of a token, its path included.
    """

    nodes: int
    depth: int
    width: int
    factor: float
    min_prob: float
    least: float = 0.0


@dataclass(kw_only=True, slots=True)
class Guess:
    """A draft tree in the making.

    Attributes:
        tokens, parents: As in `DraftTree`.
        counts: How often each token followed the string before it, and how often that string came.
        matched: Tokens of the context that the string before the first one has.
        score: Expected number of accepted tokens: the sum of the tokens' probabilities.
        truncated: Whether a path ends where the suffix tree does.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    counts: list[tuple[int, int]] = field(default_factory=list)
    matched: int = 0
    score: float = 0.0
    truncated: bool = False

    def add(self, token: int, parent: int, counts: tuple[int, int], prob: float) -> int:
        """Hang a token below node `parent`, of such `counts`; returns the new node."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.counts.append(counts)
        self.score += prob
        return len(self.tokens) - 1


Order = tuple[SuffixTree, list[int], GuessLimits]  # a tree of one text alone, that text by now, how far to guess
Drafted = tuple[list[int], list[int], list[float]]  # tokens, parents and chances, as in `DraftTree`
OWN = 0  # sequence of the text in the tree of it alone
LENGTHS = 0.6  # fitted to greedy texts: what followed a string of n tokens once does so 0.6 n times in 1 + 0.6 n


def guesses(past: SuffixTree, orders: list[Order]) -> list[Drafted]:
    """For each order the guess of the higher score by the tree of its text or by that of past ones, ties to its own.

    What the text has grown by is added to its tree before.
    """
    return [guess_after(past, *order) for order in orders]


def guess_after(past: SuffixTree, own: SuffixTree, tokens: list[int], limits: GuessLimits) -> Drafted:
    own.extend(OWN, tokens[len(own.texts[OWN]) :])
    context = tokens[-max(own.depth, past.depth) :]
    best = best_guess(own, context, limits)
    other = best_guess(past, context, limits, to_beat=best.score)
    return stated(other, limits.least) if other.tokens else stated(best, limits.least, ends=1)


def stated(guess: Guess, least: float, *, ends: int = 0) -> Drafted:
    """The guess with the chances of its tokens, less those whose path's is below `least`; `ends` of the string's
    occurrences are the end of a text, where nothing follows yet."""
    tokens, parents, chances = [], [], []
    kept: dict[int, tuple[int, int, float]] = {ROOT: (ROOT, guess.matched, 1.0)}  # new node, length, the path's chance
    for node, (token, parent, (count, whole)) in enumerate(zip(guess.tokens, guess.parents, guess.counts, strict=True)):
        if parent not in kept:
            continue
        above, length, path = kept[parent]
        chance = chance_of(count, whole - ends if parent == ROOT else whole, length)
        path *= chance
        if path < least:
            continue
        kept[node] = (len(tokens), length + 1, path)
        tokens.append(token)
        parents.append(above)
        chances.append(chance)
    return tokens, parents, chances


def chance_of(count: int, whole: int, length: int) -> float:
    """How likely a token is that followed `count` of the `whole` times that a string of `length` tokens came before."""
    return count / whole * (1.0 - 1.0 / ((1.0 + LENGTHS * length) * whole))


def best_guess(tree: SuffixTree, context: list[int], limits: GuessLimits, to_beat: float = 0.0) -> Guess:
    """The guess of the highest score from any suffix of the context, ties to the longer suffix.

    Empty where none scores over `to_beat`.
    """
    grow = chain_from if limits.width == 1 else tree_from
    best, last, occurrences = Guess(score=to_beat), Guess(), 0
    for matched, place in reversed(list(enumerate(tree.suffixes(context), 1))):
        nodes = min(limits.nodes, int(limits.factor * matched + 1e-6))
        if nodes <= best.score:  # no shorter suffix can win: a token scores at most 1
            break
        if size(place) == occurrences and not last.truncated:  # the occurrences of the longer suffix: no more to say
            continue
        last, occurrences = grow(tree, place, matched, nodes, limits), size(place)
        best = max(best, last, key=lambda guess: guess.score)
    return best


def chain_from(tree: SuffixTree, place: Place, matched: int, nodes: int, limits: GuessLimits) -> Guess:
    """The likeliest token after the string of `matched` tokens at `place`, the likeliest after that, and so on."""
    guess, prob = Guess(matched=matched), 1.0
    for depth in range(matched, min(tree.depth, matched + min(nodes, limits.depth))):
        token, child = tree.follower(place, depth)
        prob *= size(child) / size(place)
        if token is None or prob < limits.min_prob:
            break
        guess.add(token, len(guess.tokens) - 1, (size(child), size(place)), prob)
        guess.truncated = depth + 1 == tree.depth
        place = child
    return guess


def tree_from(tree: SuffixTree, place: Place, matched: int, nodes: int, limits: GuessLimits) -> Guess:
    """The `nodes` most probable tokens after the string of `matched` tokens at `place`."""
    guess, frontier = Guess(matched=matched), []
    node, prob, depth = ROOT, 1.0, matched
    while len(guess.tokens) < nodes:
        if depth < min(tree.depth, matched + limits.depth):
            for rank, (token, child) in enumerate(tree.followers(place, depth, limits.width)):
                counts = (size(child), size(place))
                likely = prob * (counts[0] / counts[1])
                if likely >= limits.min_prob:
                    heappush(frontier, (-likely, node, rank, counts, token, child, depth + 1))
        if not frontier:
            break
        cost, parent, _, counts, token, place, depth = heappop(frontier)
        prob = -cost
        node = guess.add(token, parent, counts, prob)
        guess.truncated |= depth == tree.depth
    return guess
