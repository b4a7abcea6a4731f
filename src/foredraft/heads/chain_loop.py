"""Whole chains of an autoregressive drafter in one call of the native extension."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from foredraft.model.native_runtime import extension


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """One request's chain to draft.

    Attributes:
        depth: Tokens wanted.
        context: Positions whose keys and values the drafter holds; the first drafted token is run at the next one.
        first: First of the slots of context and drafted rows where these are one run, else -1.
        keys: Otherwise all of them, [context + depth - 1].
        slots: Those of the drafted rows, [depth - 1]: the last token is not run.
        divisor: Of the logits; 1 for greedy choice.
        noise: Key of the noise at each depth, from `position_keys`; empty for greedy choice.
    """

    depth: int
    context: int
    first: int
    keys: np.ndarray | None
    slots: list[int]
    divisor: float
    noise: list[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainLoop:
    """An autoregressive drafter's program, run level by level without coming back to Python.

    Attributes:
        program: Takes what a row hands on as its input 0 and gives it as its output, if there is such a thing.
        cache: The drafter's layers.
        skip: Sections of the program that are left out.
        target_ids: Target id of each logit, [V_draft]; none where the vocabularies are one.
    """

    program: Any
    cache: Any
    skip: list[int]
    target_ids: Tensor | None

    def draft(
        self, logits: Tensor, handed: Tensor | None, chains: Sequence[Chain], vocabulary: int
    ) -> tuple[list[list[int]], list[list[float]]]:
        """Draft from the rows just run: their logits [N, V_draft] and what they hand on, [N, hidden].

        `vocabulary` is the target's number of logits: a drafter of the same vocabulary may be padded to another.

        Returns:
            Each chain's tokens and their log-shares of all values that they were the largest of.
        """
        return extension().draft_chain(
            self.program,
            self.cache,
            logits,
            handed,
            [chain.depth for chain in chains],
            [chain.context for chain in chains],
            [(chain.context, chain.first, chain.keys) for chain in chains],
            [chain.slots for chain in chains],
            [chain.divisor for chain in chains],
            [chain.noise for chain in chains],
            self.target_ids,
            logits.shape[1] if self.target_ids is not None else vocabulary,
            self.skip,
        )
