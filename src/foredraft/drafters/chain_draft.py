"""Chains drafted in one call where a drafter has a loop of its own, into the trees `GrowingTree` would make."""

from collections.abc import Callable, Sequence
from math import exp, inf

import numpy as np
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import indices, integers
from foredraft.drafters.draft_choice import plainly_chosen
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.table_slots import first_slots
from foredraft.heads.chain_loop import Chain, ChainLoop
from foredraft.model.slot_pool import SlotPool

Make = Callable[[list[int]], list[DraftTree]]


def in_one_call(task: DraftTask) -> bool:
    """Whether a loop can make this draft: a chain to its end, of the largest of raw logits or under the noise."""
    config = task.speculation
    return not config.branches and not config.draft_confidence_threshold and plainly_chosen(task)


def drafted(tasks: Sequence[DraftTask], loop: ChainLoop | None, by_loop: Make, by_levels: Make) -> list[DraftTree]:
    """A draft for each of `tasks`, whose places are told to who makes it."""
    quick = [place for place, task in enumerate(tasks) if loop is not None and in_one_call(task)]
    slow = [place for place in range(len(tasks)) if place not in quick] if len(quick) < len(tasks) else []
    trees = dict(zip(quick, by_loop(quick), strict=True)) if quick else {}
    trees |= zip(slow, by_levels(slow), strict=True) if slow else ()
    return [trees[place] for place in range(len(tasks))]


def chain_trees(
    loop: ChainLoop,
    tasks: Sequence[DraftTask],
    stored: Sequence[int],
    logits: Tensor,
    handed: Tensor | None,
    pool: SlotPool,
    name: str,
) -> list[DraftTree]:
    """Chains of a drafter that holds `stored` positions of each request.

    `logits` [tasks, V_draft] are those of the last stored rows, `handed` [tasks, hidden] what these hand on. All nodes
    take their slots before anything is run.
    """
    slots = [pool.take(task.table, min(task.depth, task.nodes)) for task in tasks]
    chains = [chain(*parts, pool) for parts in zip(tasks, stored, slots, strict=True)]
    drafts = loop.draft(logits, handed, chains, tasks[0].sampler.vocabulary.rows)
    return [tree(*parts, name) for parts in zip(*drafts, slots, strict=True)]


def chain(task: DraftTask, stored: int, slots: list[int], pool: SlotPool) -> Chain:
    sampler, own = task.sampler, slots[:-1]
    coupled = task.speculation.draft_sampling == "coupled" and not sampler.greedy
    start = len(sampler.history)
    before = first_slots(task.table, stored, pool.device)
    run = isinstance(before, slice) and own == list(range(before.stop, before.stop + len(own)))
    return Chain(
        depth=len(slots),
        context=stored,
        first=before.start if run else -1,
        keys=None if run else np.concatenate([indices(before, pool.device).numpy(), np.array(own, dtype=np.int64)]),
        slots=own,
        divisor=sampler.divisor,
        noise=sampler.keys([start + depth for depth in range(len(slots))]) if coupled else [],
    )


def tree(tokens: list[int], gains: list[float], slots: list[int], name: str) -> DraftTree:
    """Up to the first token that nothing speaks for: logits that are no numbers."""
    length = next((depth for depth, gain in enumerate(gains) if not gain > -inf), len(gains))
    return DraftTree.chain(tokens[:length], name, slots=slots[:length], chances=[exp(gain) for gain in gains[:length]])


def rows_at(states: Tensor, places: list[int]) -> Tensor:
    """Some rows of [N, ...], none copied where all are wanted in their order."""
    if places == list(range(len(states))):
        return states
    return states.index_select(0, integers(places, states.device))
