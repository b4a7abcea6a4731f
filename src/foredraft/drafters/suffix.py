"""SuffixDecoding: drafts from counted suffix trees (Oliaro et al. 2411.04975).

One tree a request holds its prompt and output; one shared tree holds the outputs of past requests.
"""

from collections import deque

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.suffix_guess import GuessLimits
from foredraft.drafters.suffix_tree import SuffixTree
from foredraft.drafters.suffix_trees import suffix_trees
from foredraft.model.target import Target


class SuffixDrafter:
    """Drafts what most often followed the text's last tokens, here or in past outputs.

    Attributes:
        depth: Longest pattern the shared tree keeps, in tokens.
        max_cached: Past outputs in the shared tree; the oldest leave first.
    """

    name = "suffix"
    needs = DrafterNeeds(instant=True, trims=True, told=False)

    def __init__(self, *, depth: int, max_cached: int) -> None:
        self.trees = suffix_trees()
        self.max_cached = max_cached
        self.past = self.trees.make(depth)
        self.cached: deque[int] = deque()  # sequences of the shared tree, oldest first
        self.texts: dict[int, SuffixTree] = {}  # by request: a tree of its text alone

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        orders = [(self.text_of(task), task.request.tokens, guess_limits(task)) for task in tasks]
        return [
            DraftTree(tokens=tokens, parents=parents, drafters=[self.name] * len(tokens), chances=chances)
            for tokens, parents, chances in self.trees.guesses(self.past, orders)
        ]

    def text_of(self, task: DraftTask) -> SuffixTree:
        """The request's own tree, which may lack its last tokens."""
        known = self.texts.get(task.request.id)
        if known is None:
            known = self.texts[task.request.id] = self.trees.make(task.speculation.suffix_decoding_max_tree_depth)
            known.insert([])  # sequence OWN
        return known

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn here: `propose` reads what is new from the request's tokens."""

    def close(self, request: Request) -> None:
        """Drop the request's own tree; where it finished, its output joins the shared one."""
        self.texts.pop(request.id, None)
        if request.finished and request.written and self.max_cached:
            self.cached.append(self.past.insert(request.output))
        while len(self.cached) > self.max_cached:
            self.past.remove(self.cached.popleft())


def guess_limits(task: DraftTask) -> GuessLimits:
    speculation = task.speculation
    return GuessLimits(
        nodes=task.nodes,
        depth=task.depth,
        width=speculation.tree_width if speculation.tree_size else 1,
        factor=speculation.suffix_decoding_max_spec_factor,
        min_prob=speculation.suffix_decoding_min_token_prob,
        least=task.growth.least,
    )


@register("suffix")
def make_suffix(config: SpeculationConfig, target: Target) -> SuffixDrafter:
    depth, max_cached = config.suffix_decoding_max_tree_depth, config.suffix_decoding_max_cached_requests
    return SuffixDrafter(depth=depth, max_cached=max_cached)
