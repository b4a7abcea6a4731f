from draft_tasks import make_request, task_for

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import make_drafter
from foredraft.drafters.none import NoneDrafter


def test_drafts_an_empty_tree_for_every_task():
    trees = NoneDrafter().propose([task_for(make_request([1, 1, 1])), task_for(make_request([2]))])
    assert [len(tree) for tree in trees] == [0, 0]


def test_is_registered():
    assert isinstance(make_drafter(SpeculationConfig(method="none"), None), NoneDrafter)
