"""Three texts that grow together through chunks, branching drafts and kept paths: a scene for any packed path."""

from collections.abc import Callable

from packed_sequence import PackedSequence, assert_rows_close, step
from torch import nn

from foredraft.core.draft_tree import DraftTree
from foredraft.core.step_plan import StepPlan
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool

PROMPTS = [[5, 9, 17, 33, 2, 8, 41], [7, 7, 12, 60, 3, 90, 4, 11, 26, 52, 6, 70, 15], [44, 21, 80]]


def branching(tokens: list[int]) -> DraftTree:
    """Nine nodes: two children of the root, three below the first, paths of one to four."""
    return DraftTree(tokens=tokens, parents=[-1, -1, 0, 0, 0, 1, 2, 6, 4], drafters=["test"] * 9)


def play(sequences: list[PackedSequence], check: Callable[[], None]) -> None:
    """Take the texts of `PROMPTS` through four steps; `check` runs and judges what is staged for each."""
    short, chunked, tiny = sequences
    short.stage(6), chunked.stage(4), tiny.stage(2)
    check()
    [sequence.commit([]) for sequence in sequences]

    short.stage(1, branching([3, 50, 8, 9, 10, 3, 77, 12, 13]))
    chunked.stage(5)  # in the middle of its prompt, beside others' trees
    tiny.stage(1, branching([1, 2, 3, 4, 5, 6, 7, 8, 9]))
    check()
    short.commit([0, 2, 6], token=30), chunked.commit([]), tiny.commit([1, 5], token=31)

    short.stage(1, branching([61, 62, 63, 64, 65, 66, 67, 68, 69]))
    chunked.stage(4, branching([20, 21, 22, 23, 24, 25, 26, 27, 28]))
    tiny.stage(1, DraftTree.chain([14, 15, 16], "test"))
    check()
    short.commit([0, 4, 8], token=29), chunked.commit([1], token=32), tiny.commit([0, 1, 2], token=33)

    [sequence.stage(1) for sequence in sequences]
    check()


def assert_rows_are_their_own_path(
    packed: PackedModel,
    plain: nn.Module,
    pool: SlotPool,
    take: Callable[[list[PackedSequence]], None],
    expected: int,
    look: Callable[[StepPlan], None] = lambda plan: None,
) -> None:
    """Play the scene with slots from `take` in tables that expect so many: every row of every step is what `plain`, on
    the CPU, says for that row's own path. `look` sees each plan."""
    sequences = [PackedSequence(pool, prompt, expected) for prompt in PROMPTS]

    def check() -> None:
        take(sequences)
        plan, logits = step(packed, sequences)
        look(plan)
        for sequence, got in zip(sequences, logits, strict=True):
            assert got.device.type == packed.device.type
            assert_rows_close(got.cpu(), sequence.wanted(plain))

    play(sequences, check)
    pool.check_integrity([sequence.table for sequence in sequences])
    for sequence in sequences:
        pool.close(sequence.table)
