"""Chains drafted in one call where a drafter has a loop of its own, into the trees `GrowingTree` would make."""

from collections.abc import Callable, Mapping, Sequence
from math import exp, inf, log

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.drafters.draft_choice import plainly_chosen, under_noise
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.table_slots import continued, first_slots
from foredraft.heads.chain_loop import Chain, ChainLoop
from foredraft.model.slot_pool import SlotPool

CPU = torch.device("cpu")  # where the extension reads slots

Make = Callable[[list[DraftTask]], list[DraftTree]]


def in_one_call(task: DraftTask) -> bool:
    """Whether a loop can make this draft: a chain to its end, of the largest of raw logits or under the noise."""
    config = task.speculation
    return not config.branches and not config.draft_confidence_threshold and plainly_chosen(task)


def drafted(tasks: list[DraftTask], loop: ChainLoop | None, by_loop: Make, by_levels: Make) -> list[DraftTree]:
    """A draft for each of `tasks`, in one call for all those that the loop can make."""
    quick = [loop is not None and in_one_call(task) for task in tasks]
    trees = {}
    for way, make in ((True, by_loop), (False, by_levels)):
        own = [task for task, one in zip(tasks, quick, strict=True) if one is way]
        trees[way] = iter(make(own) if own else [])
    return [next(trees[way]) for way in quick]


def chains_of(
    tasks: Sequence[DraftTask], filled: Mapping[int, int], pool: SlotPool, *, ahead: int = 0
) -> tuple[list[list[int]], list[Chain]]:
    """Slots for the nodes of each task's chain, taken before anything is run, and the chains.

    `filled` are positions the drafter has run, by request; `ahead` as of `chain_of`.
    """
    slots = [pool.take(task.table, min(task.depth, task.nodes)) for task in tasks]
    chains = [
        chain_of(task, own, filled=filled.get(task.request.id, 0), ahead=ahead)
        for task, own in zip(tasks, slots, strict=True)
    ]
    return slots, chains


def chain_of(task: DraftTask, nodes: list[int], *, filled: int, ahead: int = 0) -> Chain:
    """A chain of nodes in the slots `nodes`, by a drafter that has run `filled` positions.

    Its row at position i reads token i + `ahead`, and stands in the slot of position i.
    """
    sampler, tokens = task.sampler, task.request.tokens
    start = len(sampler.history)
    slots = continued(first_slots(task.table, len(tokens), CPU), nodes[: max(0, len(nodes) - 1 - ahead)], CPU)
    run = isinstance(slots, slice)
    return Chain(
        depth=len(nodes),
        context=filled,
        first=slots.start if run else -1,
        slots=None if run else slots,
        pending=tokens[filled + ahead :],
        divisor=sampler.divisor,
        noise=sampler.keys(range(start, start + len(nodes))) if under_noise(task) else [],
        least=log(task.least) if task.least > 0 else -inf,
    )


def chain_trees(
    loop: ChainLoop,
    tasks: Sequence[DraftTask],
    chains: Sequence[Chain],
    slots: Sequence[list[int]],
    name: str,
    features: Tensor | None = None,
) -> list[DraftTree]:
    """The drafted `chains` of `tasks`, their nodes in `slots`; `features` as in `ChainLoop.draft`."""
    drafts = loop.draft(chains, features, tasks[0].sampler.vocabulary.rows)
    return [tree(*parts, name) for parts in zip(*drafts, slots, strict=True)]


def tree(tokens: list[int], gains: list[float], slots: list[int], name: str) -> DraftTree:
    """Up to the first token that nothing speaks for: logits that are no numbers."""
    length = next((depth for depth, gain in enumerate(gains) if not gain > -inf), len(gains))
    return DraftTree.chain(tokens[:length], name, slots=slots[:length], chances=[exp(gain) for gain in gains[:length]])
