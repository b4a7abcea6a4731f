"""SuffixDecoding: drafts from counted suffix trees (Oliaro et al. 2411.04975).

One tree a request holds its prompt and output; one shared tree holds the outputs of past requests.
"""

from collections import deque

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.suffix_guess import GuessLimits, best_guess
from foredraft.drafters.suffix_tree import SuffixTree
from foredraft.model.target import Target


class SuffixDrafter:
    """Drafts what most often followed the text's last tokens, here or in past outputs.

    Attributes:
        depth: Longest pattern the shared tree keeps, in tokens.
        max_cached: Past outputs in the shared tree; the oldest leave first.
    """

    name = "suffix"
    needs = DrafterNeeds(instant=True, told=False)

    def __init__(self, *, depth: int, max_cached: int) -> None:
        self.max_cached = max_cached
        self.past = SuffixTree(depth)
        self.cached: deque[int] = deque()  # sequences of the shared tree, oldest first
        self.texts: dict[int, LiveText] = {}  # by request

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        """The tree for one task; empty where no suffix of the text has a likely continuation."""
        text = self.text_for(task)
        context = task.request.tokens[-max(text.tree.depth, self.past.depth) :]
        limits = guess_limits(task)
        own = best_guess(text.tree, context, limits)
        past = best_guess(self.past, context, limits, to_beat=own.score)
        best = past if past.tokens else own
        return DraftTree(
            tokens=best.tokens,
            parents=best.parents,
            drafters=[self.name] * len(best.tokens),
            chances=best.chances,
        )

    def text_for(self, task: DraftTask) -> "LiveText":
        """The request's own tree, brought up to its last token."""
        request = task.request
        if request.id not in self.texts:
            self.texts[request.id] = LiveText(task.speculation.suffix_decoding_max_tree_depth)
        text = self.texts[request.id]
        text.extend(request.tokens)
        return text

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn here: `propose` reads what is new from the request's tokens."""

    def close(self, request: Request) -> None:
        """Drop the request's own tree; where it finished, its output joins the shared one."""
        self.texts.pop(request.id, None)
        if request.finished and request.written and self.max_cached:
            self.cached.append(self.past.insert(request.output))
        while len(self.cached) > self.max_cached:
            self.past.remove(self.cached.popleft())


class LiveText:
    """A suffix tree over one growing text."""

    def __init__(self, depth: int) -> None:
        self.tree = SuffixTree(depth)
        self.sequence = self.tree.insert([])

    def extend(self, tokens: list[int]) -> None:
        """Take in the tokens that were added since the last call."""
        known = len(self.tree.texts[self.sequence])
        self.tree.extend(self.sequence, tokens[known:])


def guess_limits(task: DraftTask) -> GuessLimits:
    speculation = task.speculation
    return GuessLimits(
        nodes=task.nodes,
        depth=task.depth,
        width=speculation.tree_width if speculation.tree_size else 1,
        factor=speculation.suffix_decoding_max_spec_factor,
        min_prob=speculation.suffix_decoding_min_token_prob,
    )


@register("suffix")
def make_suffix(config: SpeculationConfig, target: Target) -> SuffixDrafter:
    depth, max_cached = config.suffix_decoding_max_tree_depth, config.suffix_decoding_max_cached_requests
    return SuffixDrafter(depth=depth, max_cached=max_cached)
