"""Every row of a packed forward is what plain transformers says for that row's own path."""

import pytest
import torch
from packed_sequence import PackedSequence, assert_rows_close, step, take_in_runs, take_interleaved
from tiny_models import ARCHITECTURES, VOCABULARY, load_packed, load_plain, save_tiny, tiny_config

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import build_plan
from foredraft.model.devices import packing_available
from foredraft.model.slot_pool import SlotPool

PROMPTS = [[5, 9, 17, 33, 2, 8, 41], [7, 7, 12, 60, 3, 90, 4, 11, 26, 52, 6, 70, 15], [44, 21, 80]]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request, tmp_path_factory):
    folder = save_tiny(tiny_config(request.param), tmp_path_factory.mktemp(request.param))
    return load_packed(folder), load_plain(folder)


def branching(tokens: list[int]) -> DraftTree:
    """Nine nodes: two children of the root, three below the first, paths of one to four."""
    return DraftTree(tokens=tokens, parents=[-1, -1, 0, 0, 0, 1, 2, 6, 4], drafters=["test"] * 9)


def test_packed_path_is_taken(models):
    packed, _ = models
    if packing_available(torch.float32):
        assert packed.path.startswith("packed path"), packed.path


@pytest.mark.parametrize(
    ("take", "expected"), [(take_interleaved, 1), (take_in_runs, 40)], ids=["scattered", "contiguous"]
)
def test_rows_equal_their_own_path(models, take, expected):
    packed, plain = models
    pool = SlotPool(160)
    packed.layers = None
    packed.attach(pool, "target")
    short, chunked, tiny = sequences = [PackedSequence(pool, prompt, expected) for prompt in PROMPTS]

    def check() -> None:
        take(sequences)
        plan, logits = step(packed, sequences)
        assert all(isinstance(segment.keys, slice) == (take is take_in_runs) for segment in plan.segments)
        for sequence, got in zip(sequences, logits, strict=True):
            assert_rows_close(got, sequence.wanted(plain))

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
    pool.check_integrity([sequence.table for sequence in sequences])


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "opt"])
def test_chunks_equal_one_shot(kind, tmp_path):
    packed = load_packed(save_tiny(tiny_config(kind), tmp_path))
    pool = SlotPool(64)
    packed.attach(pool, "target")
    whole, parts = PackedSequence(pool, PROMPTS[1], 16), PackedSequence(pool, PROMPTS[1], 16)
    whole.stage(13)
    take_in_runs([whole])
    _, (at_once,) = step(packed, [whole])
    rows = []
    for chunk in (1, 5, 2, 5):
        parts.stage(chunk)
        take_in_runs([parts])
        rows += step(packed, [parts])[1]
        parts.commit([])
    assert_rows_close(torch.cat(rows), at_once)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_only_wanted_rows_give_logits(kind, tmp_path):
    packed = load_packed(save_tiny(tiny_config(kind), tmp_path))
    pool = SlotPool(64)
    packed.attach(pool, "target")
    sequences = [PackedSequence(pool, prompt, 16) for prompt in PROMPTS]
    [sequence.stage(3) for sequence in sequences]
    take_in_runs(sequences)
    _, everything = step(packed, sequences)
    for wanted in [(1, 0, 2), (0, 0, 1), (0, 0, 0)]:
        plan = build_plan([s.rows(logits=count) for s, count in zip(sequences, wanted, strict=True)], packed.device)
        got = packed.forward(plan)
        assert got.shape == (sum(wanted), VOCABULARY)
        expected = torch.cat([rows[3 - count :] for rows, count in zip(everything, wanted, strict=True)])
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
