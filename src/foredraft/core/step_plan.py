"""What one packed forward computes: which tokens, at which positions, seeing which cached keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foredraft.core.slots import Slots, compact, integers


@dataclass(kw_only=True, eq=False)
class Segment:
    """The rows of one request in the pack: pending tokens, then draft nodes.

    Attributes:
        start: First row in the pack.
        context: Committed positions before the first row; they are seen by every row.
        keys: Cache slots of the context, then of the rows, [context + rows].
        places: Absolute position of each row, [rows].
        device: Of tensors made of it.
        parents: Parents of its last rows, a draft's nodes: places among them, or -1 for the row before all of them;
            none where every row follows the one before.
        ancestors: Which rows each row sees, itself included, [rows, rows] bool, where parents do not say it.
    """

    start: int
    context: int
    keys: Slots
    places: list[int]
    device: torch.device
    parents: list[int] | None = None
    ancestors: Tensor | None = None
    masks: dict = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of this request."""
        return len(self.places)

    @cached_property
    def positions(self) -> Tensor:
        """Absolute position of each row, [rows]."""
        return integers(self.places, self.device)

    @cached_property
    def seen(self) -> Tensor | None:
        """Which rows each row sees, itself included, [rows, rows] bool; none means causal order."""
        if self.ancestors is not None or self.parents is None:
            return self.ancestors
        return ancestor_mask(self.parents, self.rows).to(self.device)

    @property
    def row_slice(self) -> slice:
        return slice(self.start, self.start + self.rows)

    def visible(self, window: int | None) -> Tensor | None:
        """Keys each row may attend to, [rows, context + rows] bool; none when every row sees every key."""
        reach = self.context + self.rows
        narrow = window is not None and reach > window
        if self.rows == 1 and not narrow:
            return None
        seen = torch.ones(self.rows, reach, dtype=torch.bool, device=self.device)
        seen[:, self.context :] = seen[:, self.context :].tril() if self.seen is None else self.seen
        return seen & self.within(window) if narrow else seen

    def within(self, window: int) -> Tensor:
        """Keys less than `window` positions back: distance counts positions, which tree siblings share, not slots."""
        before = torch.arange(self.context, device=self.device)
        keys = torch.cat([before, self.positions])
        return self.positions[:, None] - keys[None, :] < window  # [rows, context + rows]

    def bias(self, window: int | None, repeat: int, dtype: torch.dtype) -> Tensor | None:
        """`visible` as 0 or -inf, its rows repeated for grouped heads, [repeat * rows, context + rows]; built once."""
        key = (window, repeat, dtype)
        if key not in self.masks:
            seen = self.visible(window)
            if seen is not None:
                seen = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
                seen = seen.repeat(repeat, 1)
            self.masks[key] = seen
        return self.masks[key]


@dataclass(kw_only=True, eq=False, slots=True)
class TokenChoice:
    """Tokens to be chosen by the forward itself: the argmax of each wanted row's logits / divisor + noise, in float32.

    Attributes:
        logits: Whether the logits are wanted as well.
        divisors: One for each wanted row, [R]; none where all are 1.
        keys: What the noise of each row is made of, [R]; none for the likeliest tokens.
        tokens: Those chosen, [R]; none where the forward has left that to its caller, and given the logits.
    """

    logits: bool
    divisors: list[float] | None = None
    keys: list[int] | None = None
    tokens: list[int] | None = None


@dataclass(kw_only=True, eq=False)
class StepPlan:
    """One packed forward: numbers as lists, which the native path reads, and as tensors for those who ask for them.

    Between two steps all weights are read, and what stands in caches is lost: a step is short where little is touched.

    Attributes:
        ids: Token ids of all rows, [T].
        places: Their absolute positions, [T].
        slots: Cache slots the rows' keys and values go to, [T].
        segments: The requests, in row order; together they cover all rows.
        wanted: Rows whose logits are wanted, [R], ascending.
        device: Of the tensors.
        choice: What is asked of forwards that choose tokens themselves; others pass over it.
        arranged: How attention has arranged its segments; attention's own.
    """

    ids: list[int]
    places: list[int]
    slots: list[int]
    segments: list[Segment]
    wanted: list[int]
    device: torch.device
    choice: TokenChoice | None = None
    arranged: Any = None

    def __post_init__(self) -> None:
        assert len(self.ids) == len(self.places) == len(self.slots)
        assert sum([segment.rows for segment in self.segments]) == len(self.ids)

    @cached_property
    def tokens(self) -> Tensor:
        """`ids`, [1, T] int64."""
        return integers(self.ids, self.device)[None]

    @cached_property
    def positions(self) -> Tensor:
        """`places`, [1, T] int64."""
        return integers(self.places, self.device)[None]

    @cached_property
    def write(self) -> Slots:
        """`slots`, a slice where they are a run."""
        return compact(self.slots, self.device)

    @cached_property
    def logit_rows(self) -> Tensor:
        """`wanted`, [R] int64."""
        return integers(self.wanted, self.device)


def ancestor_mask(parents: Sequence[int], rows: int) -> Tensor:
    """Which of so many rows each one sees, itself included, [rows, rows] bool: those before the nodes, whose `parents`
    are given, causally, and nodes all of these and their own ancestors."""
    pending = rows - len(parents)
    mask = np.zeros((rows, rows), dtype=bool)
    mask[:pending, :pending] = np.tri(pending, dtype=bool) if pending > 1 else True
    for row, parent in enumerate(parents, start=pending):
        mask[row] = mask[pending + parent]  # parent -1 is the root, the last pending row
        mask[row, row] = True
    return torch.from_numpy(mask)
