"""Whole chains of an autoregressive drafter in one call of the native extension."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from foredraft.model.native_runtime import extension


class Chain(NamedTuple):
    """One request's chain to draft, as the extension reads it.

    The pending rows stand at the positions from `context` on, the drafted ones behind them; the last drafted token is
    not run.

    Attributes:
        depth: Tokens wanted.
        context: Positions whose keys and values the drafter holds.
        first: First of the slots of context and rows where these are one run, else -1.
        slots: Otherwise all of them, int64 [context + pending + depth - 1].
        pending: Tokens that are run first, at least one.
        divisor: Of the logits; 1 for greedy choice.
        noise: Key of the noise at each depth, from `position_keys`; empty for greedy choice.
        least: Log-chance of the path below which no further token is drafted; -inf drafts all.
    """

    depth: int
    context: int
    first: int
    slots: np.ndarray | None
    pending: list[int]
    divisor: float
    noise: list[int]
    least: float = -inf


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLoop:
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

    def draft(
        self, chains: Sequence[Chain], features: Tensor | None, vocabulary: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Run the pending rows of all `chains`, which read `features` [rows, width] if the program does, and draft.

        `vocabulary` is the target's number of logits: a drafter of the same vocabulary may be padded to another.

        Returns:
            Each chain's tokens and their log-shares of all values that they were the largest of.
        """
        width = vocabulary if self.target_ids is None else len(self.target_ids)
        return extension().draft_chain(
            self.program, self.cache, chains, features, self.target_ids, width, self.first_skip, self.skip
        )
