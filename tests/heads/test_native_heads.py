"""Heads on the native path say what their torch modules say: chunks, chains, trees and blocks of several requests."""

from dataclasses import replace
from gc import collect
from weakref import ref

import pytest
import torch
from head_variants import EAGLE, EAGLE3, MTP, WIDTH, dflash, eagle, eagle3, medusa, mtp
from native_pairs import CASES, Texts, Trio, decoder_over
from packed_heads import HIDDEN, VOCABULARY, borrowed, sizes

from foredraft.heads import native_trial
from foredraft.heads.foreign_layer import ForeignLayer
from foredraft.heads.mtp import MtpConfig, MtpHead
from foredraft.heads.native_feature_head import NativeFeatureHead
from foredraft.heads.native_heads import native_or_torch

pytest.importorskip("foredraft_native")

FEATURE_HEADS = {f"eagle, {name}": (eagle, options) for name, options in EAGLE.items()}
FEATURE_HEADS |= {f"eagle3, {name}": (eagle3, options) for name, options in EAGLE3.items()}
FEATURE_HEADS |= {f"mtp, {name}": (mtp, options) for name, options in MTP.items()}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
NAMES = [f"{str(dtype).removeprefix('torch.')}-{kernels}" for dtype, kernels in CASES]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Biases start as torch draws them: the same ones in every run, or a failure could not be looked at again."""
    torch.manual_seed(0)


@pytest.mark.parametrize("scattered", [True, False], ids=["scattered", "runs"])
@pytest.mark.parametrize(("dtype", "kernels"), CASES, ids=NAMES)
@pytest.mark.parametrize("name", FEATURE_HEADS)
def test_a_feature_head_is_its_torch_head(name, dtype, kernels, scattered):
    make, options = FEATURE_HEADS[name]
    trio, texts = Trio(make(**options), dtype, kernels), Texts(3, scattered=scattered)
    head = trio.heads[0]
    width = 3 * WIDTH if make is eagle3 else HIDDEN
    scale = head.config.sizes.head_dim**-0.5

    def begin(counts, logits, seed):
        plan, states = texts.plan(counts, logits=logits), trio.states(sum(counts), width, seed)
        return trio.check(lambda one, layers, kind: one.begin(plan, states.to(kind), layers, scale))

    def run(counts, logits, seed, **more):
        plan, states = texts.plan(counts, logits=logits, **more), trio.states(sum(counts), HIDDEN, seed)
        return trio.check(lambda one, layers, kind: one.run(plan, states.to(kind), layers, scale))

    begin([6, 11, 0], [0, 0, 0], 1)
    begin([1, 4, 3], [1, 2, 1], 2)
    run([1, 1, 1], [1, 1, 1], 3)  # a level of chains
    run([5, 5, 5], [3, 2, 4], 4, parents=[-1, -1, 0, 2], keep=False)
    run([3, 0, 6], [2, 0, 1], 5, parents=[-1, -1], keep=False)
    trio.check_layers([slot for own in texts.slots for slot in own])


@pytest.mark.parametrize("scattered", [True, False], ids=["scattered", "runs"])
@pytest.mark.parametrize(("dtype", "kernels"), CASES, ids=NAMES)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"attention_bias": True}, {"head_norms": False}], ids=str)
def test_a_dflash_head_is_its_torch_head(options, dtype, kernels, scattered):
    trio, texts = Trio(dflash(**options), dtype, kernels), Texts(2, scattered=scattered)
    block = trio.heads[0].config.block_size

    def store(counts, seed):
        plan, states = texts.plan(counts, logits=[0, 0]), trio.states(sum(counts), 2 * WIDTH, seed)
        trio.check(lambda one, layers, kind: one.store(states.to(kind), plan, layers) or ())

    store([9, 5], 1), store([1, 4], 2)
    trio.check_layers([slot for own in texts.slots for slot in own])
    for counts in ([block, 0], [block, block]):
        plan = texts.plan(counts, logits=[0, 0], keep=False)
        plan.wanted = [row for row in range(sum(counts)) if row % block]
        for segment in plan.segments if not trio.heads[0].config.causal else ():
            segment.ancestors = torch.ones(block, block, dtype=torch.bool)
        [logits] = trio.check(lambda one, layers, kind, plan=plan: [one.guess(plan, layers)])
        assert logits.shape == (sum(counts) // block * (block - 1), VOCABULARY)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(("dtype", "kernels"), CASES, ids=NAMES)
@pytest.mark.parametrize("options", [{}, {"layers": 2}, {"bias": False}, {"draft_vocabulary": 18}], ids=str)
def test_medusa_heads_are_their_torch_heads(options, dtype, kernels, rows):
    trio = Trio(medusa(**options), dtype, kernels)
    states = trio.states(rows, HIDDEN, rows)
    [logits] = trio.check(lambda one, layers, kind: [one(states.to(kind))])
    assert logits.shape == (4, rows, trio.heads[0].config.draft_vocabulary)


def on_native_path(head, own=None, kernels="portable"):
    return native_or_torch(head, decoder_over(own or head.borrowed[0], kernels))


@pytest.mark.parametrize("rope", [LLAMA3, {"rope_type": "linear", "rope_theta": 321.0, "factor": 2.0}])
def test_static_rotations_are_covered(rope):
    native = on_native_path(eagle3(sizes=sizes(rope=rope)))
    assert isinstance(native, NativeFeatureHead) and native.path == "native path: portable kernels"


def foreign_mtp() -> MtpHead:
    config = MtpConfig(sizes=sizes(), vocabulary=VOCABULARY)
    return MtpHead(config, borrowed(), layer=ForeignLayer(torch.nn.Linear(2, 2), {}))


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 321.0, "factor": 2.0}
NOT_COVERED = {
    "a layer of the target's": (foreign_mtp, "native kernels do not cover a head of ForeignLayer"),
    "another activation": (lambda: eagle3(sizes=sizes(hidden_act="relu")), "a head with the activation ReLU"),
    "moving frequencies": (lambda: eagle(sizes=sizes(rope=DYNAMIC)), "a head with rotary embeddings of kind dynamic"),
}


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_stays_in_torch_and_says_why(name):
    make, reason = NOT_COVERED[name]
    head = make()
    assert on_native_path(head) is head and head.path.startswith("torch: native kernels do not cover")
    assert head.path.endswith(reason)


def test_a_head_of_another_target_stays_in_torch():
    head = eagle3()
    assert native_or_torch(head, None) is head and head.path == "torch: its target does not take the native path"


def test_a_native_head_that_differs_is_not_taken(monkeypatch):
    head = eagle3(norm_output=True)
    monkeypatch.setattr(NativeFeatureHead, "states", lambda self, rows: torch.zeros(rows, self.width) + 1)
    monkeypatch.setattr(native_trial, "FAR", 3)
    assert isinstance(on_native_path(head), NativeFeatureHead)
    run = NativeFeatureHead.run
    monkeypatch.setattr(NativeFeatureHead, "run", lambda self, *parts: [1.01 * part for part in run(self, *parts)])
    assert on_native_path(head) is head and head.path == "torch: native kernels did not reproduce this head"


def test_a_head_that_the_extension_refuses_stays_in_torch():
    head = eagle3(sizes=replace(sizes(), head_dim=600))
    assert on_native_path(head) is head and head.path.startswith("torch: native kernels refuse Eagle3Head: ")


def test_weights_are_let_go():
    """The native head holds no weight of the modules it stands for."""
    head = eagle3()
    held = ref(head.layers[0].mlp.down_proj.weight)
    native = on_native_path(head)
    assert isinstance(native, NativeFeatureHead) and held() is not None
    del head
    collect()
    assert held() is None
