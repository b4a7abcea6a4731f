"""No drafts at all: plain decoding in the one loop."""

from foredraft.core.draft_tree import NO_DRAFT, DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.model.target import Target


class NoneDrafter:
    """Guesses nothing, so that every step writes the target's own token."""

    name = "none"
    needs = DrafterNeeds(told=False, drafts=False)

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        return [NO_DRAFT] * len(tasks)

    def observe(self, observations: list[Observation]) -> None:
        """There is nothing to learn."""

    def close(self, request: Request) -> None:
        """There is nothing to drop."""


@register("none")
def make_none(config: SpeculationConfig, target: Target) -> NoneDrafter:
    return NoneDrafter()
