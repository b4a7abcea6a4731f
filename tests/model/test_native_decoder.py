"""The native path says what the modules say: through a straight-line interpreter, and through each set of kernels."""

from copy import deepcopy

import pytest
import torch
from packed_scene import PROMPTS, play
from packed_sequence import PackedSequence, assert_rows_close, take_in_runs, take_interleaved
from reference_program import ReferenceRuntime, rounded_rows
from tiny_models import VOCABULARY, load_plain, save_tiny, tiny_config

from foredraft.core.draft_tree import DraftTree
from foredraft.core.plan_builder import build_plan
from foredraft.model.features import FINAL_NORM
from foredraft.model.int8_weights import GROUP, quantized
from foredraft.model.layer_skips import LayerSkips
from foredraft.model.loading import find_checkpoint, load_module
from foredraft.model.native_decoder import NativeHead, native_decoder_of
from foredraft.model.native_program import released
from foredraft.model.native_runtime import BF16_ONLY, NativeRuntime, NotCovered, kernel_names
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.trial import distance

LAYERS = 3
BOUNDARIES = (0, 2, LAYERS, FINAL_NORM)
SLACK = 1.5  # times the modules' own error in bf16, which a tiny random model makes large
LOCAL = ["sliding_attention", "full_attention", "sliding_attention"]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
MODELS: dict[str, tuple[str, dict]] = {
    "llama": ("llama", {}),
    "llama with biases": ("llama", {"attention_bias": True}),
    "llama of one key head": ("llama", {"num_key_value_heads": 1}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "llama with gelu": ("llama", {"hidden_act": "gelu"}),
    "llama linear": ("llama", {"rope_parameters": LINEAR}),
    "llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {}),
    "phi3 partial": (
        "phi3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
    ),
    "smollm3": ("smollm3", {}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", {}),
}
RUNTIMES = ["reference", *kernel_names()]


@pytest.fixture(scope="module", params=MODELS)
def folder(request, tmp_path_factory) -> str:
    kind, options = MODELS[request.param]
    return save_tiny(tiny_config(kind, **options), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> str:
    return save_tiny(tiny_config("llama"), tmp_path_factory.mktemp("llama"))


def runtime(name: str):
    return ReferenceRuntime() if name == "reference" else NativeRuntime(name, 2)


def packed(folder: str, dtype: torch.dtype, name: str, **options) -> PackedModel:
    """`folder` on the native path through the runtime called `name`; its module still has its weights."""
    checkpoint = find_checkpoint(folder)
    module = load_module(checkpoint, dtype, torch.device("cpu"))
    model = PackedModel(module, checkpoint.capability, torch.device("cpu"))
    windows = checkpoint.capability.windows
    model.decoder = native_decoder_of(module, windows, runtime(name), **options)
    return model


def of_fp32(name: str) -> bool:
    return not name.endswith(BF16_ONLY)


def outcomes(result) -> list[torch.Tensor]:
    """Logits and states of a forward."""
    logits, states = result
    assert list(states) == list(BOUNDARIES)
    return [logits, *states.values()]


def assert_near(got: list, wanted: list, exact: list) -> None:
    """In fp32 the same to 1e-5; in bf16 about as near to what fp32 says of the same weights as `wanted` is."""
    for one, other, true in zip(got, wanted, exact, strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        if one.dtype is torch.float32:
            assert_rows_close(one, other)
        else:
            assert distance(true, one) <= SLACK * distance(true, other) + 0.002


def assert_like_the_modules(model: PackedModel, exact: PackedModel, take) -> None:
    """Three requests through chunks, trees and kept paths, each path with a cache of its own under the same slots."""
    pool = SlotPool(160)
    sequences = [PackedSequence(pool, prompt, 1 if take is take_interleaved else 40) for prompt in PROMPTS]
    short, _, tiny = sequences
    ours = pool.add_layers("native", model.shapes, model.dtype)
    theirs = pool.add_layers("modules", model.shapes, model.dtype)
    wide = pool.add_layers("exact", exact.shapes, torch.float32)

    def check() -> None:
        take(sequences)
        counts = (min(2, len(short.row_tokens)), 0, 1)
        rows = [sequence.rows(logits=count) for sequence, count in zip(sequences, counts, strict=True)]
        plan = build_plan(rows, model.device)
        assert all(isinstance(segment.keys, slice) == (take is take_in_runs) for segment in plan.segments)
        with torch.inference_mode():
            got = outcomes(model.decoder(plan, ours, BOUNDARIES))
            wanted = outcomes(model.run_module(plan, theirs, BOUNDARIES))
            assert_near(got, wanted, outcomes(exact.run_module(plan, wide, BOUNDARIES)))

    play(sequences, check)


@pytest.mark.parametrize("take", [take_interleaved, take_in_runs], ids=["scattered", "contiguous"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", RUNTIMES)
def test_rows_and_states_are_those_of_the_modules(folder, name, dtype, take):
    if dtype is torch.float32 and not of_fp32(name):
        pytest.skip("these kernels compute in bf16 alone")
    model = packed(folder, dtype, name)
    wide = deepcopy(model.module).float()
    assert_like_the_modules(model, PackedModel(wide, model.capability, model.device), take)


def staged(model: PackedModel, tokens: list[int]) -> PackedSequence:
    pool = SlotPool(64)
    model.attach(pool, "target")
    sequence = PackedSequence(pool, tokens, 30)
    sequence.stage(len(tokens), DraftTree(tokens=[1, 2, 3], parents=[-1, -1, 0], drafters=["test"] * 3))
    take_in_runs([sequence])
    return sequence


SKIPS = {
    "an attention": LayerSkips(attention=frozenset([1])),
    "one of each": LayerSkips(frozenset([2]), frozenset([1])),
    "early exit": LayerSkips.after(2, LAYERS),
}


@pytest.mark.parametrize("skips", SKIPS.values(), ids=SKIPS)
@pytest.mark.parametrize("name", filter(of_fp32, RUNTIMES))
def test_sublayers_left_out(folder, name, skips):
    model = packed(folder, torch.float32, name)
    shares = model.skippable.shares
    plan = build_plan([staged(model, PROMPTS[0]).rows()], model.device)
    got = model.forward_skipping(plan, skips)
    stored = [bool(model.layers.keys[layer][plan.write].any()) for layer in range(LAYERS)]
    assert stored == [layer not in skips.attention for layer in range(LAYERS)]
    model.decoder = None
    del model.skippable
    assert_rows_close(got, model.forward_skipping(plan, skips))
    counted = model.skippable.shares  # with norms and biases
    assert shares.attention == pytest.approx(counted.attention, rel=0.02)
    assert shares.mlp == pytest.approx(counted.mlp, rel=0.02) and shares.head == pytest.approx(counted.head, rel=0.02)


@pytest.mark.parametrize("name", filter(of_fp32, RUNTIMES))
def test_the_trial_holds_at_both_ends_of_the_context(folder, name):
    model = packed(folder, torch.float32, name)
    ours, model.decoder = model.trial_logits(), None
    assert distance(model.trial_logits(), ours) < 1e-4


@torch.no_grad()
def rounded_to_int8(module: torch.nn.Module, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """`module` in fp32 with what is left of its matrices in int8, and of the rows they multiply, which are handed from
    one matrix to the next in `dtype`."""
    module = deepcopy(module).float()
    for linear in module.modules():
        if type(linear) is torch.nn.Linear:
            linear.register_forward_pre_hook(lambda _, args: rounded_rows(args[0].to(dtype).float()))
            linear.register_forward_hook(lambda _, args, rows: rows.to(dtype).float())
            whole, scale = quantized(linear.weight)
            linear.weight.copy_((whole.unflatten(1, (-1, GROUP)).float() * scale.float()[..., None]).flatten(1))
    return module


@pytest.mark.parametrize("name", RUNTIMES)
def test_int8_weights_say_what_their_rounded_weights_say(name, tmp_path):
    folder = save_tiny(tiny_config("llama", hidden_size=64, intermediate_size=128, head_dim=16), tmp_path)
    dtype = torch.float32 if of_fp32(name) else torch.bfloat16
    model, same = packed(folder, dtype, name, weights="int8"), packed(folder, dtype, name)
    wide = PackedModel(rounded_to_int8(model.module), model.capability, model.device)
    narrow = PackedModel(rounded_to_int8(model.module, dtype), model.capability, model.device)
    plan = build_plan([staged(model, PROMPTS[0]).rows()], model.device)
    for each, pool in ((wide, "wide"), (narrow, "narrow"), (same, "same")):
        each.attach(SlotPool(64), pool)
    got, wanted, rounded, others = (each.forward(plan) for each in (model, wide, narrow, same))
    assert_near([got], [rounded.to(dtype)], [wanted])
    share = 0.8 if dtype is torch.float32 else 1.0  # what bf16 rounds is nearly as much
    assert distance(wanted, got) < share * distance(wanted, others)
    matrices = model.decoder.weight_bytes - VOCABULARY * 64 * dtype.itemsize
    numbers = LAYERS * (3 * 64 * 128 + 64 * 16 * (4 + 4 + 2 + 2)) + VOCABULARY * 64
    assert numbers < matrices < 1.1 * numbers  # and scales


@pytest.mark.parametrize("name", RUNTIMES)
def test_a_row_has_the_same_bits_in_any_company(llama, name):
    dtype = torch.bfloat16 if not of_fp32(name) else torch.float32
    model = packed(llama, dtype, name)
    alone = model.forward(build_plan([staged(model, PROMPTS[0]).rows(logits=1)], model.device))
    pool = SlotPool(160)
    model.attach(pool, "target")
    sequences = [PackedSequence(pool, prompt, 30) for prompt in [*PROMPTS, PROMPTS[0]]]
    for sequence in sequences:
        sequence.stage(len(sequence.tokens), DraftTree(tokens=[1, 2, 3], parents=[-1, -1, 0], drafters=["test"] * 3))
    take_in_runs(sequences)
    together = model.forward(build_plan([sequence.rows(logits=1) for sequence in sequences], model.device))
    if name == "reference":  # it leaves the order of its sums to torch
        assert_rows_close(together[[0, 3]], alone.expand(2, -1))
    else:
        assert torch.equal(together[0], alone[0]) and torch.equal(together[3], alone[0])


@pytest.mark.parametrize("name", filter(of_fp32, RUNTIMES))
def test_no_logits_are_computed_where_none_are_wanted(llama, name):
    model = packed(llama, torch.float32, name)
    plan = build_plan([staged(model, PROMPTS[0]).rows(logits=0)], model.device)
    logits, states = model.forward_with_features(plan, (1,))
    assert logits.shape == (0, VOCABULARY) and states[1].isfinite().all()
    assert model.layers.keys[LAYERS - 1][plan.write].any()


@pytest.mark.parametrize("kind", ["llama tied", "llama with biases", "gemma2", "phi3"])
@pytest.mark.parametrize("name", filter(of_fp32, RUNTIMES))
def test_released_weights_leave_what_drafters_borrow(kind, name, tmp_path):
    kind, options = MODELS[kind]
    folder = save_tiny(tiny_config(kind, **options), tmp_path)
    model, plain = packed(folder, torch.float32, name, release=True), load_plain(folder)
    module = model.module
    assert released(module) and sum(p.numel() for p in module.parameters()) < 1.2 * VOCABULARY * 32
    sequence = staged(model, PROMPTS[0])
    assert_rows_close(model.forward(build_plan([sequence.rows()], model.device)), sequence.wanted(plain))
    head, embed = module.get_output_embeddings(), module.get_input_embeddings()
    assert isinstance(head, NativeHead)
    hidden = torch.randn(2, 3, 32)
    torch.testing.assert_close(head(hidden), plain.lm_head(hidden), rtol=1e-5, atol=1e-4)
    assert head(hidden[:, :0]).shape == (2, 0, VOCABULARY)
    tokens = torch.tensor([[3, 4]])
    assert torch.equal(embed(tokens), plain.get_input_embeddings()(tokens))
    with pytest.raises(TypeError):
        model.probe_module()


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("gpt2", {}, "GPT2LMHeadModel"),
        ("granite", {}, "GraniteForCausalLM"),
        ("qwen3_moe", {}, "Qwen3MoeForCausalLM"),
        ("llama", {"mlp_bias": True}, "LlamaForCausalLM with biases in its gated MLP"),
        ("llama", {"hidden_act": "relu"}, "LlamaForCausalLM with the activation ReLU"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "LlamaForCausalLM with rotary embeddings of kind dynamic",
        ),
        (
            "phi3",
            {
                "rope_parameters": {
                    "rope_type": "longrope",
                    "rope_theta": 1e4,
                    "short_factor": [1.0] * 4,
                    "long_factor": [2.0] * 4,
                    "original_max_position_embeddings": 16,
                }
            },
            "Phi3ForCausalLM with rotary embeddings of kind longrope",
        ),
    ],
)
def test_what_is_not_covered_says_why(kind, options, reason, tmp_path):
    folder = save_tiny(tiny_config(kind, **options), tmp_path)
    with pytest.raises(NotCovered, match=f"^native kernels do not cover {reason}$"):
        packed(folder, torch.float32, "reference")


def test_a_strange_norm_is_not_covered(llama):
    checkpoint = find_checkpoint(llama)
    module = load_module(checkpoint, torch.float32, torch.device("cpu"))
    norm = module.model.layers[1].input_layernorm
    norm.register_forward_hook(lambda _, __, out: 2 * out)
    with pytest.raises(NotCovered, match="LlamaForCausalLM with such a norm"):
        native_decoder_of(module, checkpoint.capability.windows, ReferenceRuntime())
