"""Drafts what a request's grammar leaves no choice about: keys of a JSON schema, fixed words of a regex.

The grammar allows such tokens in their canonical tokenisation alone, so every exact rule accepts them.
"""

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.model.target import Target


class GrammarDrafter:
    """Drafts chains of forced tokens; empty ones for requests without a grammar."""

    name = "grammar"
    needs = DrafterNeeds(instant=True, told=False)

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        tokens = task.sampler.forced(min(task.nodes, task.depth))
        return DraftTree.chain(tokens, self.name, chances=[1.0] * len(tokens))

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn: the request's sampler keeps the grammar."""

    def close(self, request: Request) -> None:
        """There is nothing to drop."""


@register("grammar")
def make_grammar(config: SpeculationConfig, target: Target) -> GrammarDrafter:
    return GrammarDrafter()
