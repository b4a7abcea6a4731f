"""What one packed forward computes: which tokens, at which positions, seeing which cached keys."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Slots = slice | Tensor  # a run of cache slots as a slice, or any slots as int64 indices


@dataclass(kw_only=True, eq=False)
class Segment:
    """The rows of one request in the pack: pending tokens, then draft nodes.

    Attributes:
        start: First row in the pack.
        rows: Rows of this request.
        context: Committed positions before the first row; they are seen by every row.
        keys: Cache slots of the context, then of the rows, [context + rows].
        positions: Absolute position of each row, [rows].
        ancestors: Which rows each row sees, itself included, [rows, rows] bool; none means causal order.
    """

    start: int
    rows: int
    context: int
    keys: Slots
    positions: Tensor
    ancestors: Tensor | None = None
    masks: dict = field(default_factory=dict)

    @property
    def row_slice(self) -> slice:
        return slice(self.start, self.start + self.rows)

    def visible(self, window: int | None) -> Tensor | None:
        """Keys each row may attend to, [rows, context + rows] bool; none when every row sees every key."""
        reach = self.context + self.rows
        narrow = window is not None and reach > window
        if self.rows == 1 and not narrow:
            return None
        seen = torch.ones(self.rows, reach, dtype=torch.bool, device=self.positions.device)
        seen[:, self.context :] = seen[:, self.context :].tril() if self.ancestors is None else self.ancestors
        return seen & self.within(window) if narrow else seen

    def within(self, window: int) -> Tensor:
        """Keys less than `window` positions back: distance counts positions, which tree siblings share, not slots."""
        before = torch.arange(self.context, device=self.positions.device)
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
    """One packed forward.

    Attributes:
        tokens: Token ids of all rows, [1, T] int64.
        positions: Their absolute positions, [1, T] int64.
        write: Cache slots the rows' keys and values go to, T of them.
        segments: The requests, in row order; together they cover all rows.
        logit_rows: Rows whose logits are wanted, [R] int64, ascending.
        choice: What is asked of forwards that choose tokens themselves; others pass over it.
        arranged: How attention has arranged its segments; attention's own.
    """

    tokens: Tensor
    positions: Tensor
    write: Slots
    segments: list[Segment]
    logit_rows: Tensor
    choice: TokenChoice | None = None
    arranged: Any = None

    def __post_init__(self) -> None:
        assert self.tokens.shape == self.positions.shape and self.tokens.shape[0] == 1
        assert sum(segment.rows for segment in self.segments) == self.tokens.shape[1]
