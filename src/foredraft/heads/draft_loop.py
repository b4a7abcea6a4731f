"""Whole drafts of an autoregressive drafter, chains and trees, in one call of the native extension."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from foredraft.model.native_runtime import extension


class LoopOrder(NamedTuple):
    """One request's draft, as the extension reads its order.

    The pending rows stand at the positions from `context` on, the drafted ones behind them, each behind its own path;
    nodes of the last level are not run. A chain has width 1. A tree grows from the best `width` nodes of each level by
    the sum of the log-chances of their paths (EAGLE-2, Li et al. 2024).

    Attributes:
        depth, width: Longest path; most children of a node, and most rows of a level.
        nodes: How many are kept, those of the likeliest paths.
        context: Positions whose keys and values the drafter holds.
        first: First of the slots of context and pending rows where these are one run, else -1.
        slots: Otherwise all of them, int64 [context + pending].
        pending: Tokens that are run first, at least one.
        room: Slots for drafted rows, `width` for each level but the last.
        divisor: Of the logits; 1 for greedy choice.
        noise: Key of the noise at each depth, from `position_keys`; empty for greedy choice.
        least: Log-chance below which a token is the last of its chain.
        candour, row, run, onward, steps: When to stop, as in `Growth`.
    """

    depth: int
    width: int
    nodes: int
    context: int
    first: int
    slots: np.ndarray | None
    pending: list[int]
    room: list[int]
    divisor: float
    noise: list[int]
    least: float
    candour: float
    row: float
    run: float
    onward: float
    steps: tuple[float, ...]


class Grown(NamedTuple):
    """What was drafted: [N] each, parents before children.

    Attributes:
        tokens: The tokens.
        parents: Place of each node's parent among them, -1 for the root's children.
        gains: Log-share of each token among all values that it was one of the largest of.
        places: Where in the order's `room` each node's slot is; -1 for those that were not run.
    """

    tokens: list[int]
    parents: list[int]
    gains: list[float]
    places: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftLoop:
    """An autoregressive drafter's program, run level by level without coming back to Python.

    Attributes:
        program: Its drafted rows take what a row hands on as input 0 and give it as output, if there is such a thing.
        cache: The drafter's layers.
        first_skip, skip: Sections of the program that pending rows leave out, and those that drafted rows do.
        target_ids: Target id of each logit, [V_draft]; none where the vocabularies are one.
    """

    program: Any
    cache: Any
    first_skip: list[int]
    skip: list[int]
    target_ids: Tensor | None

    def draft(self, orders: Sequence[LoopOrder], features: Tensor | None, vocabulary: int) -> list[Grown]:
        """Run the pending rows of all `orders`, which read `features` [rows, width] if the program does, and draft.

        `vocabulary` is the target's number of logits: a drafter of the same vocabulary may be padded to another.
        """
        width = vocabulary if self.target_ids is None else len(self.target_ids)
        drafts = extension().draft(
            self.program, self.cache, orders, features, self.target_ids, width, self.first_skip, self.skip
        )
        return [Grown(*draft) for draft in drafts]
