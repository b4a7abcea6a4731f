"""Typical acceptance: keeps drafts the target finds plausible. Not exact."""

from math import exp

import torch
from torch import Tensor

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.outcome import Verdict
from foredraft.verification.draws import Draws, Law

EPSILON = 0.09
DELTA = 0.3


def lossy_typical(tree: DraftTree, law: Law, draws: Draws) -> Verdict:
    """Keep the longest path of tokens with p(x) > min(EPSILON, DELTA exp(-entropy(p))), the likelier of equal ones.

    Changes the law of the text except at temperature 0: a draft that is merely plausible replaces the target's draw
    (Cai et al. 2024, Medusa, 2401.10774). The token after the path is the target's own.
    """
    likelihoods = {ROOT: 1.0}  # of accepted nodes, given the root
    for row, children in enumerate(tree.children):
        parent = row - 1
        if children and parent in likelihoods:
            p = law(row)
            bar = threshold(p)
            chances = {child: p[tree.tokens[child]].item() for child in children}
            likelihoods |= {child: likelihoods[parent] * p_x for child, p_x in chances.items() if p_x > bar}
    end = max(likelihoods, key=lambda node: (len(tree.path(node)), likelihoods[node]))
    return Verdict(tree.path(end), draws.token(end + 1))


def threshold(p: Tensor) -> float:
    entropy = torch.special.entr(p).sum().item()  # nats
    return min(EPSILON, DELTA * exp(-entropy))
