"""Prompt lookup: find the text's last tokens earlier in the text and copy what followed them there.

Saxena 2023, "Prompt Lookup Decoding". Here the most recent match of the longest suffix wins, and a match whose
continuation runs into the end of the text goes on periodically, so that a repeating text drafts a full length.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.model.target import Target

TREE_MATCHES = 64  # matches one tree looks at: a gram that fills the text would otherwise cost time without limit
CHAIN_MATCHES = 8  # matches that say how likely a chain is, which is copied from the first of them
UNSEEN = 2.0  # matched tokens' worth of weight for continuations that no match shows


class NgramDrafter:
    """Copies continuations out of the request's own tokens: one as a chain, several merged as a tree."""

    name = "ngram"
    needs = DrafterNeeds(instant=True, told=False)

    def __init__(self) -> None:
        self.tables: dict[int, list[GramTable]] = {}  # by request, longest gram first

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        """The tree for one task; empty where the text's end has not occurred before."""
        tokens, speculation = task.request.tokens, task.speculation
        matches = suffix_matches(self.tables_for(task), len(tokens))
        grams: dict[tuple[int, ...], list[int]] = {}  # by path: tokens of each gram it followed
        for end, length in islice(matches, TREE_MATCHES if speculation.tree_size else CHAIN_MATCHES):
            grams.setdefault(continuation(tokens, end, task.depth), []).append(length)
        paths = narrowed(grams, speculation.tree_width) if speculation.tree_size else list(grams)[:1]
        tree = DraftTree.from_paths(paths, self.name, task.nodes)
        tree.chances = chances(tree, grams)
        return tree

    def tables_for(self, task: DraftTask) -> list["GramTable"]:
        """The request's tables, brought up to its last token."""
        request = task.request
        if request.id not in self.tables:
            longest, shortest = task.speculation.prompt_lookup_max, task.speculation.prompt_lookup_min
            self.tables[request.id] = [GramTable(n) for n in range(longest, shortest - 1, -1)]
        for table in self.tables[request.id]:
            table.extend(request.tokens)
        return self.tables[request.id]

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn here: `propose` reads what is new from the request's tokens."""

    def close(self, request: Request) -> None:
        self.tables.pop(request.id, None)


class GramTable:
    """Every n-gram of one growing text, linked to where it occurred before.

    A gram is named by where it ends: the gram that ends at i is tokens[i - n : i].
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self.latest: dict[int, int] = {}  # hash of a gram -> its last end; a collision costs no more than a bad draft
        self.earlier = [0] * n  # end -> the end before it of the same gram, 0 where there is none

    def extend(self, tokens: list[int]) -> None:
        """Take in the tokens that were added since the last call."""
        first = len(self.earlier)
        grams = zip(*(tokens[first - self.n + i :] for i in range(self.n)), strict=False)
        for end, gram in enumerate(map(hash, grams), first):
            self.earlier.append(self.latest.get(gram, 0))
            self.latest[gram] = end

    def before(self, end: int) -> Iterator[int]:
        """Ends of the earlier occurrences of the gram that ends at `end`, most recent first."""
        while end := self.earlier[end]:
            yield end


def suffix_matches(tables: list[GramTable], length: int) -> Iterator[tuple[int, int]]:
    """Where suffixes of a text of `length` tokens ended before, and how long they are.

    Each end once: longest suffix first, then latest end.
    """
    seen = set()
    for table in tables:
        for end in table.before(length):
            if end not in seen:
                seen.add(end)
                yield end, table.n


def continuation(tokens: list[int], end: int, length: int) -> tuple[int, ...]:
    """The `length` tokens from `end` on; past the last token the copy goes on over what it has just written."""
    copied = tokens[end : end + length]
    repeats = -(-length // len(copied))
    return tuple((copied * repeats)[:length])


def narrowed(paths: Iterable[tuple[int, ...]], width: int) -> list[list[int]]:
    """The paths, each cut where it would give a node more than `width` children; earlier paths go first."""
    root: dict = {}
    kept = []
    for path in paths:
        node, kept_path = root, []
        for token in path:
            if token not in node and len(node) == width:
                break
            node = node.setdefault(token, {})
            kept_path.append(token)
        kept.append(kept_path)
    return kept


def chances(tree: DraftTree, grams: dict[tuple[int, ...], list[int]]) -> list[float]:
    """An estimate for each node that it is accepted once its parent is, [N].

    `grams` holds what was found: each continuation with the lengths of the grams it followed. A match that runs through
    the parent votes with all tokens it has matched there, its gram's and those down to the parent; a node gets its part
    of these votes and of `UNSEEN`. So a longer match, more of them and more that agree make a node likelier. On texts
    that the model `tiny` wrote at temperature 0.7 these estimates, in five bins, met the share accepted within 0.11; at
    temperature 0, where it repeats itself, low ones are too low.
    """
    node_of = {
        (parent, token): node for node, (parent, token) in enumerate(zip(tree.parents, tree.tokens, strict=True))
    }
    votes, cast = [0] * len(tree), dict.fromkeys([ROOT, *range(len(tree))], UNSEEN)
    for path, lengths in grams.items():
        matched, parent = sum(lengths), ROOT
        for token in path:
            cast[parent] += matched
            parent = node_of.get((parent, token))
            if parent is None:
                break
            votes[parent] += matched
            matched += len(lengths)
    return [own / cast[parent] for own, parent in zip(votes, tree.parents, strict=True)]


@register("ngram")
def make_ngram(config: SpeculationConfig, target: Target) -> NgramDrafter:
    return NgramDrafter()
