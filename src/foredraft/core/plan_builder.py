"""Packs requests' rows into one `StepPlan`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foredraft.core.step_plan import Segment, Slots, StepPlan


@dataclass(kw_only=True, slots=True)  # not frozen: one is made for every request of a step
class Rows:
    """One request's share of a packed forward.

    Attributes:
        tokens: Pending tokens, then draft nodes, [R].
        pending: How many of them are pending; they follow one another, the last is the root.
        parents: Parent of each node after the pending ones, as in `DraftTree`, [R - pending].
        slots: Cache slots of the rows, [R].
        context: Committed positions.
        context_slots: Their cache slots, a slice or [context] int64.
        logits: How many rows from the end give logits.
    """

    tokens: list[int]
    pending: int
    parents: list[int]
    slots: list[int]
    context: int
    context_slots: Slots
    logits: int


def build_plan(requests: list[Rows], device: torch.device) -> StepPlan:
    """The packed forward of all `requests`, in order."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    spans = []
    for rows in requests:
        start, here = len(tokens), row_positions(rows)
        tokens += rows.tokens
        positions += here
        slots += rows.slots
        wanted += range(len(tokens) - rows.logits, len(tokens))
        spans.append((rows, start))
    all_positions = integers(positions, device)  # [T]
    return StepPlan(
        tokens=integers(tokens, device)[None],
        positions=all_positions[None],
        write=compact(slots, device),
        segments=[segment(rows, start, all_positions) for rows, start in spans],
        logit_rows=integers(wanted, device),
    )


def row_positions(rows: Rows) -> list[int]:
    """Absolute positions: one after another for pending rows, root position plus depth for nodes."""
    positions = list(range(rows.context, rows.context + rows.pending))
    root = rows.pending - 1
    for parent in rows.parents:
        positions.append(positions[root + 1 + parent] + 1)
    return positions


def segment(rows: Rows, start: int, positions: Tensor) -> Segment:
    count = len(rows.tokens)
    chain = all(parent == node - 1 for node, parent in enumerate(rows.parents))
    return Segment(
        start=start,
        rows=count,
        context=rows.context,
        keys=joined(rows, positions.device),
        positions=positions[start : start + count],
        ancestors=None if chain else ancestor_mask(rows).to(positions.device),
    )


def ancestor_mask(rows: Rows) -> Tensor:
    """Which rows each row sees: pending rows causally, nodes every pending row and their own ancestors, [R, R] bool."""
    count, pending = len(rows.tokens), rows.pending
    mask = np.zeros((count, count), dtype=bool)
    mask[:pending, :pending] = np.tri(pending, dtype=bool) if pending > 1 else True
    for row, parent in enumerate(rows.parents, start=pending):
        mask[row] = mask[pending + parent]  # parent -1 is the root, the last pending row
        mask[row, row] = True
    return torch.from_numpy(mask)


def joined(rows: Rows, device: torch.device) -> Slots:
    """Slots of context and rows; a slice where the rows continue the context's run."""
    own = compact(rows.slots, device)
    before = rows.context_slots
    if isinstance(before, slice) and isinstance(own, slice) and (not rows.context or before.stop == own.start):
        return slice(before.start if rows.context else own.start, own.stop)
    return torch.cat([indices(before, device), indices(own, device)])


def compact(slots: list[int], device: torch.device) -> Slots:
    """A slice where the slots are one ascending run, else int64 indices."""
    first = slots[0]
    if slots[-1] - first == len(slots) - 1 and slots == list(range(first, first + len(slots))):
        return slice(first, first + len(slots))
    return integers(slots, device)


def indices(slots: Slots, device: torch.device) -> Tensor:
    """int64 [N]."""
    return integers(np.arange(slots.start, slots.stop), device) if isinstance(slots, slice) else slots.to(device)


def integers(numbers: Sequence[int] | np.ndarray, device: torch.device) -> Tensor:
    """int64 [N]; by way of numpy, which reads a list in a fraction of the time."""
    return torch.from_numpy(np.asarray(numbers, dtype=np.int64)).to(device)
