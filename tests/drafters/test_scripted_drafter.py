import pytest
import torch
from draft_tasks import make_request, task_for

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.drafters.drafter import DrafterNeeds, Observation
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.model.slot_pool import SlotTable


def test_each_request_reads_the_list_from_the_start():
    drafter, first, second = ScriptedDrafter([[1, 2], [3]]), make_request([0]), make_request([0])
    assert [tree.tokens for tree in drafter.propose([task_for(first)])] == [[1, 2]]
    assert [tree.tokens for tree in drafter.propose([task_for(first), task_for(second)])] == [[3], [1, 2]]
    assert [tree.tokens for tree in drafter.propose([task_for(first), task_for(second)])] == [[], [3]]


def test_callable_is_asked_for_each_task():
    drafter = ScriptedDrafter(lambda task: [task.request.tokens[-1] + 1])
    trees = drafter.propose([task_for(make_request([4])), task_for(make_request([7]))])
    assert [tree.tokens for tree in trees] == [[5], [8]]
    assert trees[0].drafters == ["scripted"]


def test_trees_are_copied():
    script = [DraftTree(tokens=[1, 2, 3], parents=[-1, 0, -1], drafters=["a"] * 3, slots=[7, 8, 9])]
    [first] = ScriptedDrafter(script).propose([task_for(make_request([0]))])
    first.slots = [4, 5, 6]
    first.tokens[0] = 9
    [second] = ScriptedDrafter(script).propose([task_for(make_request([0]))])
    assert (second.tokens, second.parents, second.drafters, second.slots) == ([1, 2, 3], [-1, 0, -1], ["a"] * 3, None)


@pytest.mark.parametrize(
    ("nodes", "depth", "tokens", "parents"),
    [
        (9, 9, [1, 2, 3, 4, 5], [-1, 0, 1, -1, 3]),
        (9, 2, [1, 2, 4, 5], [-1, 0, -1, 2]),
        (9, 1, [1, 4], [-1, -1]),
        (4, 9, [1, 2, 3, 4], [-1, 0, 1, -1]),
        (3, 2, [1, 2, 4], [-1, 0, -1]),
    ],
)
def test_drafts_are_cut_to_the_task(nodes, depth, tokens, parents):
    script = [DraftTree.from_paths([[1, 2, 3], [4, 5]], "a", 9)]
    [tree] = ScriptedDrafter(script).propose([task_for(make_request([0]), nodes=nodes, depth=depth)])
    assert (tree.tokens, tree.parents) == (tokens, parents)


def test_laws_are_cut_with_the_nodes():
    root, one, four = torch.zeros(1), torch.ones(1), torch.full((1,), 4.0)
    script = DraftTree(
        tokens=[1, 4, 2, 5], parents=[-1, -1, 0, 1], drafters=["a"] * 4, laws=[root, one, four, None, None]
    )
    drafter = ScriptedDrafter(lambda task: script)
    cuts = [task_for(make_request([0]), nodes=nodes, depth=depth) for nodes, depth in [(4, 2), (3, 2), (4, 1)]]
    kept = [[None if law is None else law.item() for law in tree.laws] for tree in drafter.propose(cuts)]
    assert kept == [[0, 1, 4, None, None], [0, 1, None, None], [0, None, None]]


def test_remembers_tasks_observations_and_closed_requests():
    needs = DrafterNeeds(samples=True)
    drafter, request = ScriptedDrafter([[1]], name="double", needs=needs), make_request([0])
    task = task_for(request)
    [tree] = drafter.propose([task])
    seen = Observation(
        request=request, table=SlotTable(), first=0, tree=tree, verdict=Verdict([0], 2), committed=[1, 2]
    )
    drafter.observe([seen])
    drafter.close(request)
    assert (drafter.tasks, drafter.observations, drafter.closed) == ([task], [seen], [request])
    assert (drafter.name, drafter.needs, tree.drafters) == ("double", needs, ["double"])
