"""The MTP module against its formula written out in plain torch, through the packed path that drafts."""

import pytest
import torch
from head_variants import MTP, mtp
from packed_heads import HIDDEN, assert_drafts_like, random_pairs, sizes
from straight_line import Shape, layer, rms

from foredraft.heads.mtp import MtpHead
from foredraft.model.features import FINAL_NORM

SHAPE = Shape(heads=4, kv_heads=2, head_dim=12, theta=321.0, eps=1e-5)


def straight(head: MtpHead, shape: Shape = SHAPE):
    """DeepSeek-V3 (2412.19437), equations 21 to 23; the embedding's half comes first, as the weights are stored."""
    w, own = head.state_dict(), head.borrowed[0]

    def run(hidden, tokens):
        embedding = w.get("embed_tokens.weight", own.embed.weight)[tokens]
        halves = rms(embedding, w["enorm.weight"], shape.eps), rms(hidden, w["hnorm.weight"], shape.eps)
        out = layer(torch.cat(halves, dim=1) @ w["eh_proj.weight"].T, w, "layer", shape)
        final = rms(out, w["norm.weight"], shape.eps)
        logits = final @ w.get("lm_head.weight", own.head.weight).T
        return out, final if head.config.feed_normed else out, logits

    return run


@pytest.mark.parametrize("name", MTP)
def test_mtp_is_its_formula(name):
    head = mtp(**MTP[name])
    features, tokens = random_pairs(HIDDEN)
    assert head.fuse(features) is features and head.target_ids is None and head.feature_layers == (FINAL_NORM,)
    assert_drafts_like(head, sizes(), 1, features, tokens, straight(head))


def test_the_two_feedbacks_are_told_apart():
    plain, normed = mtp(), mtp(feed_normed=True)
    features, tokens = random_pairs(HIDDEN)
    with pytest.raises(AssertionError):
        assert_drafts_like(normed, sizes(), 1, features, tokens, straight(plain))


def test_the_halves_may_not_change_places():
    head, features, tokens = mtp(), *random_pairs(HIDDEN)
    swapped = mtp()
    swapped.eh_proj.weight.copy_(head.eh_proj.weight.roll(HIDDEN, 1))
    with pytest.raises(AssertionError):
        assert_drafts_like(swapped, sizes(), 1, features, tokens, straight(head))


def test_only_its_own_parts_are_weights():
    assert {name.split(".")[0] for name in mtp().state_dict()} == {"enorm", "hnorm", "eh_proj", "layer", "norm"}
