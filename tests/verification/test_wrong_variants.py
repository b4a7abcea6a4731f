"""The enumeration has teeth: on the same models it finds mistakes that were made elsewhere."""

from dataclasses import replace

import pytest
import torch
import toy_models as toy
from test_losslessness import MODELS, TREES, error

from foredraft.core.outcome import Verdict
from foredraft.verification.block import block
from foredraft.verification.draft_law import draft_law
from foredraft.verification.residual import excess, normalised
from foredraft.verification.standard import standard
from foredraft.verification.traversal import traversal
from foredraft.verification.tree import tree_rejection

TARGET, DRAFTER = MODELS["unrelated"]


class Recorded:
    """Draws whose coins come out as planned; the chances they were thrown with are kept."""

    def __init__(self):
        self.chances = []

    def coin(self, probability):
        self.chances.append(probability)
        return False

    def residual(self, weights):
        return 0


def block_that_stops_at_its_first_failure(tree, law, draws):
    recorded = Recorded()
    block(tree, law, recorded)
    chances, kept = recorded.chances[::-1], 0
    while kept < len(tree) and draws.coin(chances[kept]):
        kept += 1
    if kept == len(tree):
        return Verdict(list(range(kept)), draws.token(kept))
    p, reach = law(kept), 1.0
    for row in range(kept):
        before = law(row)
        reach = min(1.0, reach * (before / draft_law(tree, row, 0, before))[tree.tokens[row]].item())
    return Verdict(list(range(kept)), draws.residual(normalised(excess(p, draft_law(tree, kept, 0, p), reach), p)))


def without_the_draft_update(rule):
    """Siblings drawn without replacement, verified as if each had been drawn from the whole law."""
    return lambda tree, law, draws: rule(replace(tree, replacement=True), law, draws)


def as_if_sampled(model):
    """The likeliest tokens, offered with the law they rank highest in as if they had been drawn from it."""

    def draft(branch):
        tree = toy.likeliest_tree(model, TREES["two by two"])(branch)
        laws = [model(tuple(tree.path_tokens(row - 1))) for row in range(len(tree) + 1)]
        return replace(tree, laws=laws, replacement=False)

    return draft


def accept_likeliest(tree, law, draws):
    """Keep a draft where it is the target's likeliest token, at any temperature."""
    kept = 0
    while kept < len(tree) and law(kept).argmax().item() == tree.tokens[kept]:
        kept += 1
    return Verdict(list(range(kept)), draws.token(kept))


@pytest.mark.parametrize("length", [2, 3])
def test_block_verification_that_stops_at_the_first_failure(length):
    assert error(block_that_stops_at_its_first_failure, toy.sampled_chain(DRAFTER, length), TARGET) > 1e-3


@pytest.mark.parametrize("rule", [tree_rejection, traversal])
@pytest.mark.parametrize("shape", [TREES["two children"], TREES["two by two"]])
def test_trees_without_replacement_and_without_the_draft_update(rule, shape):
    draft = toy.sampled_tree(DRAFTER, shape, replacement=False)
    assert error(without_the_draft_update(rule), draft, TARGET) > 1e-3


@pytest.mark.parametrize("rule", [tree_rejection, traversal])
def test_likeliest_tokens_verified_as_if_sampled(rule):
    assert error(rule, as_if_sampled(DRAFTER), TARGET) > 1e-3


@pytest.mark.parametrize("length", [1, 2, 3])
def test_acceptance_of_the_likeliest_token(length):
    assert error(accept_likeliest, toy.likeliest_tree(TARGET, toy.chain_shape(length)), TARGET) > 1e-3


def reused_noise_law(p, q, points: int):
    """Law of the standard rule's first token when its residual reuses the draft's noise.

    Coins are independent and enter as probabilities; the noise is integrated over a lattice of its quantiles.
    """
    steps = torch.tensor(
        [0.8191725134, 0.6710436067, 0.5497004779], dtype=torch.float64
    )  # powers of the plastic number
    quantiles = (0.5 + torch.arange(points)[:, None] * steps) % 1  # [points, V]
    noise = -quantiles.log().neg().log()
    drafts = (q.log() + noise).argmax(-1)
    after = (excess(p, q).log() + noise).argmax(-1)
    keep = (p / q).clamp(max=1)[drafts]
    joint = torch.zeros(len(p), dtype=torch.float64)
    return joint.index_add(0, drafts, keep).index_add(0, after, 1 - keep) / points


def test_residual_drawn_with_the_noise_of_the_draft():
    p, q = toy.law_of(0.1, 0.6, 0.3), toy.law_of(0.8, 0.1, 0.1)
    wrong = reused_noise_law(p, q, points=400_000)
    assert wrong.tolist() == pytest.approx([0.1, 0.627, 0.273], abs=1e-3)
    assert (wrong - p).abs().max() > 1e-3
    assert error(standard, toy.sampled_chain(lambda context: q, 1), lambda context: p) < 1e-12
