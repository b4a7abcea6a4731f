"""Who is told of a step."""

from types import SimpleNamespace

import pytest

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.drafters.drafter import DrafterNeeds
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine import step

SLOTTED = DraftTree(tokens=[1], parents=[-1], drafters=["model"], slots=[7])
COPIED = DraftTree(tokens=[1], parents=[-1], drafters=["suffix"])


@pytest.mark.parametrize(("tree", "told"), [(SLOTTED, 2), (COPIED, 1), (DraftTree(), 1)])
def test_who_learns_of_its_slots_alone_is_told_of_drafts_that_have_some(tree: DraftTree, told: int):
    """One request's observation is made for every drafter that is told: beside many requests that adds up."""
    heard = []
    drafters = [ScriptedDrafter([], name=name, needs=DrafterNeeds(slotted=name == "model")) for name in ("a", "model")]
    for drafter in drafters:
        drafter.observe = heard.extend
    running = SimpleNamespace(told=drafters, request=None, table=[0] * 4)
    work = SimpleNamespace(
        running=running, states={}, verdict=Verdict([], 3), chunk=1, path=[], tree=tree, event=None, successors=None
    )
    step.observe([work])
    assert len(heard) == told
