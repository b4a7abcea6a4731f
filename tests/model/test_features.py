"""Hidden states taken out of a packed forward are those transformers names, on every path a forward may take."""

import pytest
import torch
from packed_sequence import PackedSequence, take_in_runs, take_interleaved
from tiny_models import ARCHITECTURES, load_packed, load_plain, save_tiny, tiny_config

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ModelError
from foredraft.core.plan_builder import build_plan
from foredraft.model.capture import LAST_NORMS, capturing, first_of, require_boundaries
from foredraft.model.features import FINAL_NORM
from foredraft.model.packed_weights import packing_available
from foredraft.model.slot_pool import SlotPool

PROMPTS = [[5, 9, 17, 33, 2, 8, 41], [7, 7, 12, 60, 3, 90, 4, 11, 26, 52, 6, 70, 15], [44, 21, 80]]
LAYERS = 3
ALL = (*range(LAYERS + 1), FINAL_NORM)
TOLERANCE = 1e-5  # of the largest entry, fp32


@pytest.fixture(scope="module", params=ARCHITECTURES)
def models(request, tmp_path_factory):
    folder = save_tiny(tiny_config(request.param), tmp_path_factory.mktemp(request.param))
    return load_packed(folder), load_plain(folder)


@torch.inference_mode()
def plain_states(plain, tokens: list[int]) -> dict[int, torch.Tensor]:
    """By boundary, [len(tokens), hidden]: transformers' last entry is the normed one, so the one before it is taken
    from the input of the last norm."""
    norm = first_of(plain.get_decoder(), LAST_NORMS)
    caught = []
    handle = norm.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    hidden = plain(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True).hidden_states
    handle.remove()
    assert len(hidden) == LAYERS + 1
    states = dict(enumerate(hidden[:LAYERS])) | {LAYERS: caught[0], FINAL_NORM: hidden[LAYERS]}
    return {boundary: state[0] for boundary, state in states.items()}


def wanted_rows(plain, sequence: PackedSequence) -> dict[int, torch.Tensor]:
    """States of the staged rows, each node at the end of its own path alone, [R, hidden]."""
    root = sequence.tokens[: sequence.computed + sequence.pending]
    pending = plain_states(plain, root)
    nodes = [plain_states(plain, root + sequence.tree.path_tokens(node)) for node in range(len(sequence.tree))]
    return {b: torch.cat([pending[b][sequence.computed :], *(node[b][-1:] for node in nodes)]) for b in ALL}


def assert_states(got, sequences: list[PackedSequence], plain) -> None:
    counts = [len(sequence.row_tokens) for sequence in sequences]
    for boundary in ALL:
        for sequence, rows in zip(sequences, got[boundary].split(counts), strict=True):
            wanted = wanted_rows(plain, sequence)[boundary]
            error = (rows - wanted).abs().max() / wanted.abs().max()
            assert error <= TOLERANCE, f"boundary {boundary} is {error:.2g} off"


@pytest.mark.parametrize("fast", [True, False], ids=["fastest path", "module path"])
@pytest.mark.parametrize("take", [take_interleaved, take_in_runs], ids=["scattered", "contiguous"])
def test_states_are_those_of_transformers(models, take, fast):
    packed, plain = models
    pool = SlotPool(160)
    packed.layers = None
    packed.attach(pool, "target")
    sequences = short, chunked, tiny = [PackedSequence(pool, prompt, 40) for prompt in PROMPTS]
    decoder = packed.decoder
    packed.decoder = decoder if fast else None

    def check() -> None:
        take(sequences)
        plan = build_plan([sequence.rows(logits=1) for sequence in sequences], packed.device)
        logits, states = packed.forward_with_features(plan, ALL)
        assert logits.shape[0] == len(sequences) and set(states) == set(ALL)
        assert_states(states, sequences, plain)

    try:
        short.stage(6), chunked.stage(4), tiny.stage(2)
        check()
        [sequence.commit([]) for sequence in sequences]
        short.stage(1, DraftTree(tokens=[3, 50, 8, 9], parents=[-1, -1, 0, 1], drafters=["test"] * 4))
        chunked.stage(5)  # in the middle of its prompt, beside others' trees
        tiny.stage(1, DraftTree.chain([1, 2, 3], "test"))
        check()
        short.commit([1, 3], token=30), chunked.commit([]), tiny.commit([0], token=31)
        [sequence.stage(1) for sequence in sequences]
        check()
    finally:
        packed.decoder = decoder


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_last_boundary_becomes_the_final_norm(kind, tmp_path):
    packed = load_packed(save_tiny(tiny_config(kind), tmp_path))
    pool = SlotPool(32)
    packed.attach(pool, "target")
    sequence = PackedSequence(pool, PROMPTS[0], 16)
    sequence.stage(7)
    take_in_runs([sequence])
    logits, states = packed.forward_with_features(build_plan([sequence.rows()], packed.device), ALL)
    normed = packed.module.model.norm(states[LAYERS])
    torch.testing.assert_close(normed, states[FINAL_NORM], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(packed.module.lm_head(normed), logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(states[LAYERS], states[FINAL_NORM], rtol=0.1, atol=0.1)


def test_the_fast_path_was_among_them(tmp_path):
    if packing_available(torch.float32):
        assert load_packed(save_tiny(tiny_config("llama"), tmp_path)).decoder is not None


def test_features_do_not_change_the_logits(tmp_path):
    packed = load_packed(save_tiny(tiny_config("llama"), tmp_path))
    pool = SlotPool(32)
    packed.attach(pool, "target")
    sequence = PackedSequence(pool, PROMPTS[1], 16)
    sequence.stage(13)
    take_in_runs([sequence])
    plan = build_plan([sequence.rows(logits=2)], packed.device)
    plain = packed.forward(plan)
    assert torch.allclose(plain, packed.forward_with_features(plan, (0, 2, FINAL_NORM))[0], atol=1e-5)
    assert torch.allclose(plain, packed.forward_with_features(plan, (1,))[0], atol=1e-5)


def test_no_hook_outlives_its_forward(tmp_path):
    plain = load_plain(save_tiny(tiny_config("llama"), tmp_path))
    with capturing(plain, ALL) as states:
        plain(input_ids=torch.tensor([[1, 2]]), use_cache=False)
    caught = dict(states)
    plain(input_ids=torch.tensor([[3, 4, 5]]), use_cache=False)
    assert states.keys() == caught.keys() and all(state.shape[1] == 2 for state in states.values())


def test_boundaries_that_do_not_exist_are_refused(tmp_path):
    plain = load_plain(save_tiny(tiny_config("llama"), tmp_path))
    require_boundaries(plain, ALL)
    with pytest.raises(ModelError, match="feature layer 29 is asked for; LlamaModel has boundaries 0 to 3"):
        require_boundaries(plain, (0, 29))
    del plain.model.layers
    with pytest.raises(ModelError, match="other names") as error:
        require_boundaries(plain, (0,))
    assert "\n" not in str(error.value)
    require_boundaries(plain, (FINAL_NORM,))
