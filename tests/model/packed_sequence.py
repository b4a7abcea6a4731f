"""A text that grows through packed forwards, beside the plain model that says what each row must be."""

import torch
from tiny_models import plain_logits

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.step_plan import StepPlan
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool, SlotTable

TOLERANCE = 1e-5  # of the largest logit, fp32


class PackedSequence:
    """Committed `tokens`, of which `computed` are in the cache, and what the current step adds."""

    def __init__(self, pool: SlotPool, tokens: list[int], expected: int):
        self.pool, self.tokens, self.computed = pool, list(tokens), 0
        self.table: SlotTable = pool.open(expected)
        self.pending, self.tree = 0, DraftTree()

    def stage(self, pending: int, tree: DraftTree | None = None) -> None:
        """The next step runs `pending` tokens and then the nodes of `tree`."""
        self.pending, self.tree = pending, tree or DraftTree()

    @property
    def row_tokens(self) -> list[int]:
        return self.tokens[self.computed : self.computed + self.pending] + self.tree.tokens

    def rows(self, logits: int | None = None) -> Rows:
        return Rows(
            tokens=self.row_tokens,
            pending=self.pending,
            parents=self.tree.parents,
            slots=list(self.table.tail),
            context=self.computed,
            context_slots=self.table.committed(self.pool.device),
            logits=len(self.row_tokens) if logits is None else logits,
        )

    def wanted(self, plain: torch.nn.Module) -> torch.Tensor:
        """What the plain model says for each row, each node on its root-to-node path alone, [R, V]."""
        root = self.tokens[: self.computed + self.pending]
        pending = plain_logits(plain, root)[self.computed :]
        nodes = [plain_logits(plain, root + self.tree.path_tokens(node))[-1:] for node in range(len(self.tree))]
        return torch.cat([pending, *nodes])

    def commit(self, path: list[int], token: int | None = None) -> None:
        """Accept the nodes of `path` and, where the step decided, write the target's own `token`."""
        tail = self.table.tail
        self.pool.keep(self.table, tail[: self.pending] + [tail[self.pending + node] for node in path])
        self.computed += self.pending + len(path)
        self.tokens += [self.tree.tokens[node] for node in path] + ([] if token is None else [token])


def take_interleaved(sequences: list[PackedSequence]) -> None:
    """Slots for all staged rows, one at a time in turn, so that nobody's are a run."""
    for turn in range(max(len(sequence.row_tokens) for sequence in sequences)):
        for sequence in sequences:
            if turn < len(sequence.row_tokens):
                sequence.pool.take(sequence.table, 1)


def take_in_runs(sequences: list[PackedSequence]) -> None:
    for sequence in sequences:
        sequence.pool.take(sequence.table, len(sequence.row_tokens))


def step(model: PackedModel, sequences: list[PackedSequence]) -> tuple[StepPlan, list[torch.Tensor]]:
    """One packed forward; the rows of logits of each sequence."""
    plan = build_plan([sequence.rows() for sequence in sequences], model.device)
    return plan, list(model.forward(plan).split([len(sequence.row_tokens) for sequence in sequences]))


def assert_rows_close(got: torch.Tensor, wanted: torch.Tensor) -> None:
    error = (got - wanted).abs().amax(-1) / wanted.abs().max()
    assert error.max() <= TOLERANCE, f"relative error of each row: {error.tolist()}"
