"""Lookahead decoding (Fu et al. 2402.02057): the target itself finds the n-grams that its text is drafted from.

Every forward carries two more things: guesses, which are n-grams of a pool that start with the root, and a window of
tokens further ahead, whose likeliest successors make new n-grams for the pool. The window is the draft tree's probes.
"""

from dataclasses import dataclass
from random import Random

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.lookahead_window import LookaheadWindow
from foredraft.drafters.ngram import narrowed
from foredraft.drafters.ngram_pool import NgramPool
from foredraft.model.target import Target


@dataclass(frozen=True, slots=True)
class Search:
    """What one request looks ahead with."""

    window: LookaheadWindow
    pool: NgramPool


class LookaheadDrafter:
    """Drafts the n-grams that began with the root before, most recent first: one as a chain, several merged as a tree.

    A draft is as long as an n-gram less its first token, `num_speculative_tokens` allowing. The pool holds n-grams of
    the window, of the prompt and of the written text. The window is continued in the steps that carry it and waits in
    the others; near the end of the target's context, where its positions would not exist, it is left out. A draft is
    quickly made but not declared instant: its price is the window, and a window that is drafted and not run learns
    nothing.

    Attributes:
        width: Columns of the window.
        ngram: Tokens of an n-gram.
        guesses: Most n-grams verified in a step, and kept for a token.
        ends: Tokens that end a text.
        context_length: Positions the target has.
    """

    name = "lookahead"

    def __init__(self, *, width: int, ngram: int, guesses: int, ends: frozenset[int], context_length: int):
        self.width, self.ngram, self.guesses = width, ngram, guesses
        self.ends, self.context_length = ends, context_length
        self.needs = DrafterNeeds(successors=1, scratch=width * (ngram - 1), deepest=ngram - 1)
        self.searches: dict[int, Search] = {}  # by request

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        """Guesses and window for one task."""
        request = task.request
        search = self.search_of(request)
        search.pool.extend(request.tokens)
        paths = dict.fromkeys(path[: task.depth] for path in search.pool.after(request.tokens[-1]))
        width = task.speculation.tree_width if task.speculation.branches else 1
        tree = DraftTree.from_paths(narrowed(paths, width), self.name, task.nodes)
        if len(request.tokens) + search.window.depth <= self.context_length:
            search.window.hang(tree, self.name)
        return tree

    def search_of(self, request: Request) -> Search:
        """The request's window and pool; a new window starts with tokens of the prompt, drawn by the request's seed."""
        if request.id not in self.searches:
            random = Random(request.seed)
            tokens = [token for token in request.prompt if token not in self.ends] or request.prompt
            window = LookaheadWindow(
                width=self.width, ngram=self.ngram, draw=lambda: random.choice(tokens), ends=self.ends
            )
            self.searches[request.id] = Search(window, NgramPool(ngram=self.ngram, capacity=self.guesses))
        return self.searches[request.id]

    def observe(self, observations: list[Observation]) -> None:
        """Continue the windows that the step carried, and keep the n-grams they complete."""
        for seen in observations:
            search, tree = self.searches.get(seen.request.id), seen.tree
            if search and tree.probes and tree.tokens[-tree.probes :] == search.window.tokens:
                for ngram in search.window.advance([row[0] for row in seen.successors[-tree.probes :]]):
                    search.pool.add(ngram)

    def close(self, request: Request) -> None:
        self.searches.pop(request.id, None)


@register("lookahead")
def make_lookahead(config: SpeculationConfig, target: Target) -> LookaheadDrafter:
    return LookaheadDrafter(
        width=config.lookahead_window,
        ngram=config.lookahead_ngram,
        guesses=config.lookahead_guesses,
        ends=frozenset(target.vocabulary.eos_token_ids),
        context_length=target.context_length,
    )
