"""The target's features that a drafter was told of and has not run yet."""

import sys

import torch
from torch import Tensor

from foredraft.core.request import Request
from foredraft.drafters.drafter import Observation
from foredraft.drafters.prefix_state import Columns, PrefixState

EVERY_POSITION = sys.maxsize


class FeatureStore:
    """Features as the target gave them, in the order of their positions, until the drafter's head has run them.

    Being told of a step then costs an append, so a drafter that is not asked for many steps costs next to nothing; what
    it missed is run at once when it is asked. Its price is memory: a token that waits takes all captured states (for
    EAGLE-3 three of them, for DFlash five), in the target's dtype. One that was run takes none.

    Attributes:
        known: Positions of each request whose features have come, counted from the first.
        waiting: Those of the last so many of them, a tuple of [rows, hidden] a step.
    """

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.waiting: dict[int, list[Columns]] = {}

    def store(self, seen: Observation) -> None:
        """Keep the features of the rows one step has kept."""
        assert seen.first == self.known.get(seen.request.id, 0), "features come without gaps"
        self.known[seen.request.id] = seen.first + len(seen.features[0])
        self.waiting.setdefault(seen.request.id, []).append(seen.features)

    def take(self, request: Request, rows: int) -> Tensor:
        """The first `rows` rows that wait, [rows, features x hidden]; they wait no longer."""
        steps = self.waiting.pop(request.id)
        columns = steps[0] if len(steps) == 1 else together(steps)
        assert len(columns[0]) >= rows
        if len(columns[0]) > rows:
            self.waiting[request.id] = [tuple(column[rows:] for column in columns)]
        return torch.cat([column[:rows] for column in columns], dim=-1)

    def ready(self, request: Request) -> bool:
        """Whether every position before the root is known, and the last of them waits: a draft starts from it.

        It does not wait where it came from another request, whose head has run it; the next step brings a newer one.
        """
        return request.id in self.waiting and self.known[request.id] == len(request.tokens) - 1

    def leave(self, request: Request, filled: int, length: int) -> PrefixState:
        """What is known of the first `length` positions, of which the head has run `filled`.

        What waits goes on waiting. It is put together in memory of its own, so that it keeps no other rows alive.
        """
        known = min(self.known.get(request.id, 0), length)
        if filled >= known:
            return PrefixState(known, known)
        columns = together(self.waiting[request.id])
        self.waiting[request.id] = [columns]
        return PrefixState(filled, known, (tuple(column[: known - filled] for column in columns),))

    def resume(self, request: Request, state: PrefixState) -> None:
        """Start over with what waits in `state`."""
        self.close(request)
        if state.known:
            self.known[request.id] = state.known
        if state.features:
            self.waiting[request.id] = list(state.features)

    def close(self, request: Request) -> None:
        self.known.pop(request.id, None)
        self.waiting.pop(request.id, None)


def together(steps: list[Columns]) -> Columns:
    """Features of rows one after another, copied."""
    return tuple(torch.cat(column) for column in zip(*steps, strict=True))
