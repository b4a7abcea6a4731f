"""The scripted target reads histories through slots and masks, so a wrong one cannot pass."""

import pytest
from packed_sequence import PackedSequence, take_in_runs, take_interleaved

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.model.scripted_target import ScriptedTarget

TREE = DraftTree(tokens=[3, 4, 5, 6, 7], parents=[-1, -1, 0, 0, 2], drafters=["test"] * 5)


def listening() -> tuple[ScriptedTarget, list[tuple[int, ...]]]:
    """A target and the histories it was asked about."""
    heard: list[tuple[int, ...]] = []

    def law(history):
        heard.append(history)
        return [0.0] * 10

    return ScriptedTarget(law, vocabulary=10, slots=64), heard


def heard_in_step(target, heard, sequences, take) -> list[tuple[int, ...]]:
    heard.clear()
    take(sequences)
    plan = build_plan([sequence.rows() for sequence in sequences], target.pool.device)
    assert target.forward(plan)[0].shape == (plan.tokens.shape[1], 10)
    return list(heard)


@pytest.mark.parametrize(("take", "expected"), [(take_interleaved, 1), (take_in_runs, 20)])
def test_rows_see_exactly_their_path(take, expected):
    target, heard = listening()
    one, two = PackedSequence(target.pool, [1, 2, 9], expected), PackedSequence(target.pool, [8, 8, 8, 1], expected)
    one.stage(2), two.stage(3)
    assert heard_in_step(target, heard, [one, two], take) == [(1,), (1, 2), (8,), (8, 8), (8, 8, 8)]
    one.commit([]), two.commit([])
    one.stage(1, TREE), two.stage(1)
    tree_rows = [(1, 2, 9, *TREE.path_tokens(node)) for node in range(5)]
    assert heard_in_step(target, heard, [one, two], take) == [(1, 2, 9), *tree_rows, (8, 8, 8, 1)]
    one.commit([0, 2, 4], token=0), two.commit([])
    one.stage(1), two.stage(0)
    assert heard_in_step(target, heard, [one], take) == [(1, 2, 9, 3, 5, 7, 0)]


def test_a_wrong_context_slot_is_noticed():
    target, _ = listening()
    target.forward(build_plan([rows([1, 2, 3], slots=[0, 1, 2])], target.pool.device))
    with pytest.raises(AssertionError, match="positions out of order"):
        target.forward(build_plan([rows([4], slots=[5], context=3, context_slots=slice(1, 4))], target.pool.device))


def test_a_slot_never_written_is_noticed():
    target, _ = listening()
    with pytest.raises(AssertionError, match="positions out of order"):
        target.forward(build_plan([rows([4], slots=[5], context=1, context_slots=slice(4, 5))], target.pool.device))


def rows(tokens, *, slots, context=0, context_slots=slice(0, 0)) -> Rows:
    return Rows(
        tokens=tokens,
        pending=len(tokens),
        parents=[],
        slots=slots,
        context=context,
        context_slots=context_slots,
        logits=len(tokens),
    )
