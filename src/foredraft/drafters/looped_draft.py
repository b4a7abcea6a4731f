"""Drafts made in one call where a drafter has a loop of its own: the trees `GrowingTree` would make."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.drafters.draft_choice import plainly_ordered, under_noise
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.table_slots import first_slots
from foredraft.heads.draft_loop import DraftLoop, Grown, LoopOrder
from foredraft.model.slot_pool import SlotPool

CPU = torch.device("cpu")  # where the extension reads slots

Make = Callable[[list[DraftTask]], list[DraftTree]]


def in_one_call(task: DraftTask) -> bool:
    """Whether a loop can make this draft: one that grows from the largest of raw logits or under the noise."""
    return task.speculation.speculative_token_tree is None and plainly_ordered(task)


def drafted(tasks: list[DraftTask], loop: DraftLoop | None, by_loop: Make, by_levels: Make) -> list[DraftTree]:
    """A draft for each of `tasks`, in one call for all those that the loop can make."""
    quick = [loop is not None and in_one_call(task) for task in tasks]
    trees = {}
    for way, make in ((True, by_loop), (False, by_levels)):
        own = [task for task, one in zip(tasks, quick, strict=True) if one is way]
        trees[way] = iter(make(own) if own else [])
    return [next(trees[way]) for way in quick]


def looped_drafts(
    loop: DraftLoop,
    tasks: Sequence[DraftTask],
    pool: SlotPool,
    name: str,
    filled: Mapping[int, int],
    *,
    ahead: int = 0,
    features: Tensor | None = None,
) -> list[tuple[DraftTree, set[int]]]:
    """A draft for each of `tasks` by the drafter `name`, all in one call, and the slots of those nodes it ran through.

    Args:
        filled: Positions the drafter has run, by request.
        ahead: The row of a position reads the token so many positions later.
        features: As in `DraftLoop.draft`.
    """
    orders = [order_of(task, filled.get(task.request.id, 0), ahead, pool) for task in tasks]
    drafts = loop.draft(orders, features, tasks[0].sampler.vocabulary.rows)
    return [
        tree_of(draft, order.room, task, pool, name) for draft, order, task in zip(drafts, orders, tasks, strict=True)
    ]


def order_of(task: DraftTask, filled: int, ahead: int, pool: SlotPool) -> LoopOrder:
    """The order for a draft by a drafter that has run `filled` positions, with slots for its rows from the pool."""
    sampler, tokens, config = task.sampler, task.request.tokens, task.speculation
    width = config.tree_width if config.tree_size else 1
    depth = min(task.depth, task.nodes)
    stored, start = len(tokens) - ahead, len(sampler.history)
    slots = first_slots(task.table, stored, CPU)
    run = isinstance(slots, slice)
    return LoopOrder(
        depth=depth,
        width=width,
        nodes=task.nodes,
        context=filled,
        first=slots.start if run else -1,
        slots=None if run else slots,
        pending=tokens[filled + ahead :],
        room=pool.take(task.table, width * (depth - 1)) if depth > 1 else [],
        divisor=sampler.divisor,
        noise=sampler.keys(range(start, start + depth)) if under_noise(task) else [],
        least=log(config.draft_confidence_threshold) if config.draft_confidence_threshold else -inf,
        candour=task.growth.candour,
        row=task.growth.row,
        run=task.growth.run,
        onward=task.growth.onward,
        steps=task.growth.steps,
    )


def tree_of(draft: Grown, room: list[int], task: DraftTask, pool: SlotPool, name: str) -> tuple[DraftTree, set[int]]:
    """The draft with a slot for each node, and those of them that were run: these keep theirs, others take what is
    left."""
    count = len(draft.tokens)
    ran = {room[place] for place in draft.places if place >= 0}
    spare = [slot for slot in room if slot not in ran]
    lacking = count - len(ran) - len(spare)
    spare += pool.take(task.table, lacking) if lacking > 0 else []
    left = iter(spare)
    tree = DraftTree(
        tokens=draft.tokens,
        parents=draft.parents,
        drafters=[name] * count,
        slots=[room[place] if place >= 0 else next(left) for place in draft.places],
        chances=[exp(gain) for gain in draft.gains],
    )
    return tree, ran
