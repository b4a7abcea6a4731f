"""Drafters one after the other: who is cheap is asked first, who comes after it drafts where it has nothing to say.

Which draft stands may depend on what was drafted: exact rules weigh a draft that was not sampled as it is. Of a sampled
draft no token may decide whether it stands, so it stands unless it is empty.
"""

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.combination import Combination, Part, common_needs, make_parts
from foredraft.drafters.drafter import DraftTask, register
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import Target

WEAK = 0.5  # expected accepted tokens below which the next drafter is asked too, where a draft tells chances


class CascadeDrafter(Combination):
    """Drafts by the first part that has a good draft, request by request.

    A weak draft stands where nobody after it has any. A fixed tree is drafted by the parts that draft such trees.
    """

    def __init__(self, parts: list[Part], pool: SlotPool):
        needs = [part.drafter.needs for part in parts]
        common = common_needs(
            parts,
            samples=all(each.samples for each in needs),
            scratch=max(each.scratch for each in needs),
            fixed_trees=any(each.fixed_trees for each in needs),
        )
        super().__init__("cascade", parts, pool, common)

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """The first good draft for each task; each part is asked once for all tasks that have none yet."""
        drafts = [DraftTree() for _ in tasks]
        held = [len(task.table.tail) for task in tasks]
        waiting = list(range(len(tasks)))
        for index in range(len(self.parts)):
            answers = self.ask(index, [tasks[place] for place in waiting]) if waiting else []
            asked, waiting = waiting, []
            for place, tree in zip(asked, answers, strict=True):
                if weak(tree) and index + 1 < len(self.parts):
                    waiting.append(place)
                    tree = self.give_back(index, tasks[place], tree, held[place])
                if len(tree):
                    drafts[place] = tree
        return drafts


def weak(tree: DraftTree) -> bool:
    """Whether a draft guesses nothing, or expects too little of itself."""
    guesses = tree.guesses
    if not len(guesses) or guesses.laws is not None or guesses.chances is None:
        return not len(guesses)
    return expected_tokens(guesses) < WEAK


def expected_tokens(tree: DraftTree) -> float:
    """How many tokens of a draft that tells chances will be accepted, by them."""
    reach = {ROOT: 1.0}
    for node, (parent, chance) in enumerate(zip(tree.parents, tree.chances, strict=True)):
        reach[node] = reach[parent] * chance
    return sum(reach.values()) - 1.0


@register("cascade")
def make_cascade(config: SpeculationConfig, target: Target) -> CascadeDrafter:
    """The cascade of `config.drafters`. Raises `ConfigError`, or what making one of them raises."""
    return CascadeDrafter(make_parts(config, target), target.pool)
