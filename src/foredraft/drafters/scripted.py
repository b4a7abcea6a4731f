"""A drafter for tests that drafts what it is told to."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation

Draft = DraftTree | list[int]
Script = list[Draft] | Callable[[DraftTask], Draft]


class ScriptedDrafter:
    """Drafts from a script and remembers what it is asked and shown.

    A list gives round i of every request its entry i, and nothing after the last; a callable is asked for each task.
    Tokens make a chain. A draft that exceeds its task's `nodes` or `depth` is cut to them.

    Attributes:
        tasks: Every task, in order.
        observations: Every observation, in order.
        closed: Every closed request, in order.
    """

    def __init__(self, script: Script, *, name: str = "scripted", needs: DrafterNeeds | None = None) -> None:
        self.name = name
        self.needs = needs or DrafterNeeds()
        self.script = script
        self.rounds: Counter[int] = Counter()  # by request
        self.tasks: list[DraftTask] = []
        self.observations: list[Observation] = []
        self.closed: list[Request] = []

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        self.tasks += tasks
        return [self.draft(task) for task in tasks]

    def draft(self, task: DraftTask) -> DraftTree:
        draft = self.script(task) if callable(self.script) else self.next_entry(task.request)
        tree = draft if isinstance(draft, DraftTree) else DraftTree.chain(draft, self.name)
        return cut(tree, nodes=task.nodes, depth=task.depth)

    def next_entry(self, request: Request) -> Draft:
        entry = self.rounds[request.id]
        self.rounds[request.id] += 1
        return self.script[entry] if entry < len(self.script) else []

    def observe(self, observations: list[Observation]) -> None:
        self.observations += observations

    def close(self, request: Request) -> None:
        self.rounds.pop(request.id, None)
        self.closed.append(request)


def cut(tree: DraftTree, *, nodes: int, depth: int) -> DraftTree:
    """A copy of the first `nodes` nodes of a tree that are at most `depth` deep; its slots are left to the engine."""
    kept = [node for node in range(len(tree)) if tree.depths[node] <= depth][:nodes]
    return replace(tree.only(kept), slots=None)
