"""Packs requests' rows into one `StepPlan`."""

from dataclasses import dataclass

import torch

from foredraft.core.slots import Slots, indices, integers, is_run
from foredraft.core.step_plan import Segment, StepPlan


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
    places: list[int] = []
    slots: list[int] = []
    wanted: list[int] = []
    segments = []
    for rows in requests:
        segments.append(segment(rows, len(tokens), device))
        tokens += rows.tokens
        places += segments[-1].places
        slots += rows.slots
        wanted += range(len(tokens) - rows.logits, len(tokens))
    return StepPlan(ids=tokens, places=places, slots=slots, segments=segments, wanted=wanted, device=device)


def segment(rows: Rows, start: int, device: torch.device) -> Segment:
    follows = rows.parents == list(range(-1, len(rows.parents) - 1))
    return Segment(
        start=start,
        context=rows.context,
        keys=joined(rows, device),
        places=row_places(rows),
        device=device,
        parents=None if follows else rows.parents,
    )


def row_places(rows: Rows) -> list[int]:
    """Absolute positions: one after another for pending rows, root position plus depth for nodes."""
    places = list(range(rows.context, rows.context + rows.pending))
    root = rows.pending - 1
    for parent in rows.parents:
        places.append(places[root + 1 + parent] + 1)
    return places


def joined(rows: Rows, device: torch.device) -> Slots:
    """Slots of context and rows; a slice where the rows continue the context's run."""
    own, before = rows.slots, rows.context_slots
    if isinstance(before, slice) and is_run(own) and (not rows.context or before.stop == own[0]):
        return slice(before.start if rows.context else own[0], own[0] + len(own))
    return torch.cat([indices(before, device), integers(own, device)])
