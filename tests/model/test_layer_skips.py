"""A forward without some sublayers says what the model would say if they added nothing, on either path."""

import pytest
import torch
from packed_sequence import PackedSequence, assert_rows_close, take_in_runs
from tiny_models import SIZES, load_packed, load_plain, save_tiny, tiny_config

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError, ModelError
from foredraft.core.plan_builder import build_plan
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips
from foredraft.model.slot_pool import SlotPool

LAYERS = SIZES["num_hidden_layers"]
KINDS = ["llama", "qwen3", "gemma2", "olmo2", "phi3", "gpt2", "gpt_neox", "gpt_oss", "cohere2"]
TOKENS = [5, 9, 17, 33, 2, 8, 41, 3]
TREE = DraftTree(tokens=[1, 2, 3], parents=[-1, -1, 0], drafters=["test"] * 3)
SKIPS = {
    "an attention": LayerSkips(attention=frozenset([1])),
    "an mlp": LayerSkips(mlp=frozenset([0])),
    "one of each": LayerSkips(frozenset([2]), frozenset([1])),
    "a layer and more": LayerSkips(frozenset([0, 1]), frozenset([1, 2])),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    return {kind: save_tiny(tiny_config(kind), tmp_path_factory.mktemp(kind)) for kind in KINDS}


def staged(model, tokens: list[int], *, cached: int = 0) -> PackedSequence:
    """A text of which the model itself has computed `cached` tokens; the rest and a tree are to be run."""
    pool = SlotPool(64)
    model.attach(pool, "target")
    sequence = PackedSequence(pool, tokens, 30)
    if cached:
        sequence.stage(cached)
        take_in_runs([sequence])
        model.forward(build_plan([sequence.rows()], model.device))
        sequence.commit([])
    sequence.stage(len(tokens) - cached, TREE)
    take_in_runs([sequence])
    return sequence


def without(plain: torch.nn.Module, skips: LayerSkips) -> torch.nn.Module:
    """The plain model, the output of each left-out sublayer times zero."""
    decoder = plain.get_decoder()
    for index, layer in enumerate(getattr(decoder, "layers", None) or decoder.h):
        children = dict(layer.named_children())
        for names, layers in ((("self_attn", "attn", "attention"), skips.attention), (("mlp",), skips.mlp)):
            if index in layers:
                part = next(children[name] for name in names if name in children)
                part.register_forward_hook(
                    lambda _, __, out: (out[0] * 0, *out[1:]) if isinstance(out, tuple) else out * 0
                )
    return plain


def truncated(plain: torch.nn.Module, count: int) -> torch.nn.Module:
    decoder = plain.get_decoder()
    name = "layers" if hasattr(decoder, "layers") else "h"
    setattr(decoder, name, getattr(decoder, name)[:count])
    return plain


@pytest.mark.parametrize("kind", KINDS)
def test_leaving_nothing_out_changes_no_bit(kind, folders):
    model = load_packed(folders[kind])
    plan = build_plan([staged(model, TOKENS, cached=5).rows()], model.device)
    wanted = model.forward(plan)
    assert torch.equal(model.forward_skipping(plan, NOTHING_SKIPPED), wanted)
    model.decoder = None
    by_modules = model.forward(plan)
    assert torch.equal(model.forward_skipping(plan, NOTHING_SKIPPED), by_modules)


@pytest.mark.parametrize("exit_layer", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_an_early_exit_is_the_model_cut_short(kind, exit_layer, folders):
    """Over keys and values that the whole model has stored: its first layers know nothing of the later ones."""
    model, plain = load_packed(folders[kind]), truncated(load_plain(folders[kind]), exit_layer)
    sequence = staged(model, TOKENS, cached=5)
    plan = build_plan([sequence.rows()], model.device)
    skips = LayerSkips.after(exit_layer, LAYERS)
    assert_rows_close(model.forward_skipping(plan, skips), sequence.wanted(plain))
    model.decoder = None
    assert_rows_close(model.forward_skipping(plan, skips), sequence.wanted(plain))


@pytest.mark.parametrize("name", SKIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sublayer_left_out_adds_nothing(kind, name, folders):
    model, plain = load_packed(folders[kind]), without(load_plain(folders[kind]), SKIPS[name])
    sequence = staged(model, TOKENS)
    plan = build_plan([sequence.rows()], model.device)
    whole, wanted = model.forward(plan), sequence.wanted(plain)
    assert (whole - wanted).abs().max() > 0.01 * wanted.abs().max()
    assert_rows_close(model.forward_skipping(plan, SKIPS[name]), wanted)
    model.decoder = None
    assert_rows_close(model.forward_skipping(plan, SKIPS[name]), wanted)
    assert torch.allclose(model.forward(plan), whole, atol=1e-5 * float(whole.abs().max()))  # all is back in place


def test_attentions_that_do_not_run_store_nothing(folders):
    model = load_packed(folders["llama"])
    sequence = staged(model, TOKENS)
    plan = build_plan([sequence.rows()], model.device)
    model.forward_skipping(plan, LayerSkips(attention=frozenset([1]), mlp=frozenset([0])))
    stored = [bool(model.layers.keys[layer][plan.write].any()) for layer in range(LAYERS)]
    assert stored == [True, False, True]


@pytest.mark.parametrize("kind", ["gemma2", "gpt_neox"])
def test_nothing_of_a_whole_layer_is_computed(kind, folders):
    model = load_packed(folders[kind])
    ran = []
    for index, layer in enumerate(model.module.get_decoder().layers):
        for part in [part for part in layer.modules() if not list(part.children())]:
            part.register_forward_hook(lambda *_, index=index: ran.append(index))
    plan = build_plan([staged(model, TOKENS).rows()], model.device)
    assert len(model.skippable.layers) == LAYERS  # found by a run of the whole module
    ran.clear()
    model.forward_skipping(plan, LayerSkips.after(2, LAYERS))
    assert set(ran) == {0, 1}


def test_modules_are_back_after_a_failure(folders):
    model = load_packed(folders["gemma2"])
    plan = build_plan([staged(model, TOKENS).rows()], model.device)
    before = [dict(vars(part)) for part in model.module.modules()]
    wanted = model.forward(plan)
    plan.segments[0].keys = None
    with pytest.raises((TypeError, AttributeError)):
        model.forward_skipping(plan, LayerSkips(frozenset([1]), frozenset([1, 2])))
    assert [set(vars(part)) for part in model.module.modules()] == [set(names) for names in before]
    fresh = build_plan([staged_again(model).rows()], model.device)
    assert torch.equal(model.forward(fresh), wanted)


def staged_again(model) -> PackedSequence:
    sequence = PackedSequence(SlotPool(64), TOKENS, 30)
    sequence.stage(len(TOKENS), TREE)
    take_in_runs([sequence])
    return sequence


def test_a_model_without_mlp_modules_is_refused(tmp_path):
    model = load_packed(save_tiny(tiny_config("opt"), tmp_path))
    with pytest.raises(ModelError, match="OPTDecoderLayer has no MLP of its own"):
        assert model.skippable


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_shares_count_weights(kind, folders):
    """Of a tied or an untied head alike: it is read whole either way."""
    shares = load_packed(folders[kind]).skippable.shares
    hidden, inner, rows = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    heads, groups = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
    attention, mlp = 2 * hidden * (heads + groups) * SIZES["head_dim"], 3 * hidden * inner
    total = LAYERS * (attention + mlp) + rows * hidden
    assert shares.attention == pytest.approx([attention / total] * LAYERS)
    assert shares.mlp == pytest.approx([mlp / total] * LAYERS) and shares.head == pytest.approx(rows * hidden / total)
    assert shares.of(NOTHING_SKIPPED) == pytest.approx(1)
    skips = LayerSkips(frozenset([1]), frozenset([0, 2]))
    assert shares.of(skips) == pytest.approx(1 - (attention + 2 * mlp) / total)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", LayerSkips()),
        ("attention 3, mlp 5", LayerSkips(frozenset([3]), frozenset([5]))),
        ("mlp 1,attention 0 , attention 2,", LayerSkips(frozenset([0, 2]), frozenset([1]))),
    ],
)
def test_lists_are_read_and_written(text, wanted):
    skips = LayerSkips.parse(text, 8)
    assert skips == wanted and LayerSkips.parse(str(skips), 8) == skips


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("attention 8", "'attention 8'; the target has 8 layers, 0 to 7"),
        ("mlp 3, mlp 70", "'mlp 70'; the target has 8 layers"),
        ("attn 3", "holds 'attn 3'; give sublayers"),
        ("mlp", "holds 'mlp'; give sublayers"),
        ("mlp -1", "holds 'mlp -1'; give sublayers"),
        ("mlp 2 attention 3", "give sublayers"),
    ],
)
def test_a_bad_list_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        LayerSkips.parse(text, 8)
