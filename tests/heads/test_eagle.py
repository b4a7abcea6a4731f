"""EAGLE heads against their formulas written out in plain torch, through the packed path that drafts."""

import pytest
import torch
from head_variants import EAGLE, EAGLE3, WIDTH, eagle, eagle3
from packed_heads import HIDDEN, VOCABULARY, assert_drafts_like, random_pairs, sizes
from straight_line import Shape, after_attention, layer, rms

from foredraft.heads.eagle import Eagle3Head, EagleHead
from foredraft.heads.shared import draft_ids, vocabulary_maps
from foredraft.model.features import FINAL_NORM

SHAPE = Shape(heads=4, kv_heads=2, head_dim=12, theta=321.0, eps=1e-5)


def straight_eagle(head: EagleHead, shape: Shape = SHAPE):
    """Li et al. 2401.15077: `fc(cat(embedding, feature))`, layers, the target's own output layer."""
    w, own = head.state_dict(), head.borrowed[0]

    def run(hidden, tokens):
        x = torch.cat([own.embed.weight[tokens], hidden], dim=1) @ w["fc.weight"].T
        x = x + w["fc.bias"] if "fc.bias" in w else x
        for index in range(head.config.layers):
            x = layer(x, w, f"layers.{index}", shape)
        return x, x, x @ own.head.weight.T

    return run


def straight_eagle3(head: Eagle3Head, shape: Shape = SHAPE):
    """Li et al. 2503.01840; the variants as published with the heads that need them."""
    w, config = head.state_dict(), head.config

    def run(hidden, tokens):
        embedding = w.get("embed_tokens.weight", head.borrowed[0].embed.weight)[tokens]
        normed = rms(hidden, w["layers.0.hidden_norm.weight"], shape.eps)
        x = torch.cat([rms(embedding, w["layers.0.input_layernorm.weight"], shape.eps), normed], dim=1)
        out = after_attention(normed if config.norm_before_residual else hidden, x, w, "layers.0", shape)
        for index in range(1, config.layers):
            out = layer(out, w, f"layers.{index}", shape)
        final = rms(out, w["norm.weight"], shape.eps)
        return out, final if config.norm_output else out, final @ w["lm_head.weight"].T

    return run


def straight_fusion(head: Eagle3Head, features: torch.Tensor) -> torch.Tensor:
    w = head.state_dict()
    if head.config.norm_before_fc:
        features = rms(features, w["input_norm.weight"], SHAPE.eps)
    if head.config.fc_norm:
        stretches = [features[:, WIDTH * i : WIDTH * (i + 1)] for i in range(3)]
        stretches = [rms(part, w[f"fc_norm.{i}.weight"], SHAPE.eps) for i, part in enumerate(stretches)]
        features = torch.cat(stretches, dim=1)
    return features @ w["fc.weight"].T


@pytest.mark.parametrize("name", EAGLE)
def test_eagle_is_its_formula(name):
    head = eagle(**EAGLE[name])
    features, tokens = random_pairs(HIDDEN)
    assert head.fuse(features) is features and head.target_ids is None and head.feature_layers == (FINAL_NORM,)
    assert not any(part.startswith("layers.0.input_layernorm") for part in head.state_dict())
    assert_drafts_like(head, head.config.sizes, head.config.layers, features, tokens, straight_eagle(head))


@pytest.mark.parametrize("name", EAGLE3)
def test_eagle3_is_its_formula(name):
    head = eagle3(**EAGLE3[name])
    features, tokens = random_pairs(3 * WIDTH)
    torch.testing.assert_close(head.fuse(features), straight_fusion(head, features), rtol=1e-5, atol=1e-5)
    assert_drafts_like(head, head.config.sizes, head.config.layers, features, tokens, straight_eagle3(head))


def test_the_reference_tells_the_variants_apart():
    """Each flag changes the outputs by far more than the tolerance, so that none can be lost unseen."""
    features, tokens = random_pairs(3 * WIDTH)
    plain = eagle3()
    for flag in ("norm_before_residual", "fc_norm", "norm_before_fc", "norm_output"):
        other = eagle3(**{flag: True})
        other.load_state_dict(plain.state_dict(), strict=False)
        with pytest.raises(AssertionError):
            assert_drafts_like(other, sizes(), 1, features, tokens, lambda h, t: straight_of(plain, features, h, t))


def straight_of(head: Eagle3Head, features, hidden, tokens):
    """The straight line of `head` from the features on, drafted rows from what was handed over."""
    fused = torch.cat([straight_fusion(head, features), hidden[len(features) :]])
    return straight_eagle3(head)(fused, tokens)


@pytest.mark.parametrize("wrong", [{"theta": 1e4}, {"theta": 1e6}])
def test_another_rope_base_shows(wrong):
    head = eagle3()
    features, tokens = random_pairs(3 * WIDTH)
    other = Shape(heads=4, kv_heads=2, head_dim=12, eps=1e-5, **wrong)
    with pytest.raises(AssertionError):
        assert_drafts_like(head, sizes(), 1, features, tokens, straight_eagle3(head, other))


def test_what_is_fed_back_is_not_normed_unless_it_says_so():
    out = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(0))
    assert eagle3().fed_back(out) is out and eagle().fed_back(out) is out
    head = eagle3(norm_output=True)
    torch.testing.assert_close(head.fed_back(out), rms(out, head.norm.weight, 1e-5), rtol=1e-5, atol=1e-5)


def test_draft_ids_are_offsets_from_their_own_place():
    ids = torch.tensor([0, 3, 4, 9, 17, 39])
    d2t, t2d = vocabulary_maps(ids, VOCABULARY)
    assert draft_ids(d2t).tolist() == ids.tolist() == t2d.nonzero()[:, 0].tolist()
    assert d2t.tolist() == [0, 2, 2, 6, 13, 34]
    head = eagle3(draft_vocabulary=6)
    head.d2t.copy_(d2t)
    assert head.target_ids.tolist() == ids.tolist()
    assert eagle3().target_ids is None and "d2t" not in eagle3().state_dict()


def test_a_borrowed_part_is_no_weight_of_the_head():
    assert not any("borrowed" in name or "embed" in name for name in [*eagle().state_dict(), *eagle3().state_dict()])
    assert "embed_tokens.weight" in eagle3(own_embedding=True).state_dict()
