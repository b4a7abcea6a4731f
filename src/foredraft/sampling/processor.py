"""What every logits processor is."""

from torch import Tensor

from foredraft.sampling.tree_rows import TreeRows


class Processor:
    """Turns scores into scores, row by row: a row's result never depends on the rows beside it.

    Attributes:
        spent: The processor will not change scores any more and may be dropped.
        divisor: What it divides all scores by, where that is all it does.
    """

    spent = False
    divisor: float | None = None

    def __call__(self, scores: Tensor, rows: TreeRows) -> Tensor:
        """New scores, float32 [R, V], for `scores` [R, V], which stay as they are."""
        raise NotImplementedError

    def commit(self, tokens: list[int]) -> None:
        """The request has written `tokens`."""
