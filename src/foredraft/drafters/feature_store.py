"""The target's features that a drafter was told of and has not run yet."""

import torch
from torch import Tensor

from foredraft.core.request import Request
from foredraft.drafters.drafter import Observation


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
        self.waiting: dict[int, list[tuple[Tensor, ...]]] = {}

    def store(self, seen: Observation) -> None:
        """Keep the features of the rows one step has kept."""
        assert seen.first == self.known.get(seen.request.id, 0), "features come without gaps"
        self.known[seen.request.id] = seen.first + len(seen.features[0])
        self.waiting.setdefault(seen.request.id, []).append(seen.features)

    def take(self, request: Request, rows: int) -> Tensor:
        """The first `rows` rows that wait, [rows, features x hidden]; they wait no longer."""
        steps = self.waiting.pop(request.id)
        columns = steps[0] if len(steps) == 1 else [torch.cat(column) for column in zip(*steps, strict=True)]
        assert len(columns[0]) >= rows
        if len(columns[0]) > rows:
            self.waiting[request.id] = [tuple(column[rows:] for column in columns)]
        return torch.cat([column[:rows] for column in columns], dim=-1)

    def ready(self, request: Request) -> bool:
        """Whether every position before the root is known: a draft starts from the last of them."""
        return 0 < self.known.get(request.id, 0) == len(request.tokens) - 1

    def close(self, request: Request) -> None:
        self.known.pop(request.id, None)
        self.waiting.pop(request.id, None)
