"""Prompt lookup: find the text's last tokens earlier in the text and copy what followed them there.

Saxena 2023, "Prompt Lookup Decoding". Here the most recent match of the longest suffix wins, and a match whose
continuation runs into the end of the text goes on periodically, so that a repeating text drafts a full length.
"""

from collections.abc import Iterator
from itertools import islice

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.model.target import Target

TREE_MATCHES = 64  # matches one tree looks at: a gram that fills the text would otherwise cost time without limit


class NgramDrafter:
    """Copies continuations out of the request's own tokens: one as a chain, several merged as a tree."""

    name = "ngram"
    needs = DrafterNeeds()

    def __init__(self) -> None:
        self.tables: dict[int, list[GramTable]] = {}  # by request, longest gram first

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        """The tree for one task; empty where the text's end has not occurred before."""
        tokens, speculation = task.request.tokens, task.speculation
        ends = suffix_matches(self.tables_for(task), len(tokens))
        ends = islice(ends, TREE_MATCHES if speculation.tree_size else 1)
        paths = dict.fromkeys(continuation(tokens, end, task.depth) for end in ends)
        return DraftTree.from_paths(narrowed(paths, speculation.tree_width), self.name, task.nodes)

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


def suffix_matches(tables: list[GramTable], length: int) -> Iterator[int]:
    """Where suffixes of a text of `length` tokens ended before, each once: longest suffix first, then latest end."""
    seen = set()
    for table in tables:
        for end in table.before(length):
            if end not in seen:
                seen.add(end)
                yield end


def continuation(tokens: list[int], end: int, length: int) -> tuple[int, ...]:
    """The `length` tokens from `end` on; past the last token the copy goes on over what it has just written."""
    copied = tokens[end : end + length]
    repeats = -(-length // len(copied))
    return tuple((copied * repeats)[:length])


def narrowed(paths: dict[tuple[int, ...], None], width: int) -> list[list[int]]:
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


@register("ngram")
def make_ngram(config: SpeculationConfig, target: Target) -> NgramDrafter:
    return NgramDrafter()
