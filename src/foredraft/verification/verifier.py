"""Acceptance rules at work: a request's logits and noise in, a verdict out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.sampling.request_sampler import RequestSampler
from foredraft.verification.block import block
from foredraft.verification.draws import Accept
from foredraft.verification.lossy_typical import lossy_typical
from foredraft.verification.sample_and_match import sample_and_match
from foredraft.verification.standard import standard
from foredraft.verification.traversal import traversal
from foredraft.verification.tree import tree_rejection

ACCEPT_STREAM = "accept"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """An acceptance rule.

    Attributes:
        name: What `rejection_sample_method` calls it.
        accept: The rule itself.
        needs_laws: Whether it asks for the target's distributions, not only for its tokens.
        lossless: Whether the text keeps the target's law.
    """

    name: str
    accept: Accept
    needs_laws: bool = True
    lossless: bool = True


rules: dict[str, Rule] = {
    rule.name: rule
    for rule in (
        Rule(name="match", accept=sample_and_match, needs_laws=False),
        Rule(name="standard", accept=standard),
        Rule(name="block", accept=block),
        Rule(name="tree", accept=tree_rejection),
        Rule(name="traversal", accept=traversal),
        Rule(name="lossy-typical", accept=lossy_typical, lossless=False),
    )
}


@dataclass(slots=True)
class SamplerDraws:
    """`Draws` of one verdict. Coins and residuals have a stream of their own: the noise of a position that chooses
    tokens must not also decide whether a draft is kept.

    Attributes:
        sampler: The request's.
        token: The target's own token at a row.
        used: Numbers taken from the stream so far.
    """

    sampler: RequestSampler
    token: Callable[[int], int]
    used: int = 0

    def coin(self, probability: float) -> bool:
        return self.uniform() < probability

    def residual(self, weights: Tensor) -> int:
        return inverse_cdf(weights, self.uniform())

    def uniform(self) -> float:
        self.used += 1
        return self.sampler.uniform(ACCEPT_STREAM, self.used - 1)


def inverse_cdf(weights: Tensor, u: float) -> int:
    """The token at quantile `u`, in [0, 1), of `weights` [V]; never one of weight 0."""
    mass = weights.cumsum(0)
    total = mass[-1:]
    assert total > 0, "no token is left to draw"
    token = torch.searchsorted(mass, u * total, right=True)
    return torch.minimum(token, torch.searchsorted(mass, total)).item()  # u * total may round up to the total


def accept(
    rule: Rule, tree: DraftTree, sampler: RequestSampler, logits: Tensor | None, chosen: list[int] | None = None
) -> Verdict:
    """What `rule` keeps of `tree`, and the token the target adds.

    Args:
        rule: One of `rules`, or the caller's own.
        tree: The drafts; may be empty.
        sampler: The request's, its history ending at the root.
        logits: The target's raw logits of the root and of each node, [N + 1, V]; not read where tokens are `chosen`.
        chosen: The token of each row, [N + 1], where the caller has drawn them all already.
    """
    assert len(logits if chosen is None else chosen) == len(tree) + 1
    if rule.needs_laws and len(tree):
        return accept_by_law(rule, tree, sampler, logits)
    if chosen is None:
        chosen = sampler.draw(sampler.scores(logits, row_paths(tree)), [0, *tree.depths])
    if not len(tree):
        return Verdict([], chosen[0])
    return rule.accept(tree, no_law, SamplerDraws(sampler, chosen.__getitem__))


def accept_by_law(rule: Rule, tree: DraftTree, sampler: RequestSampler, logits: Tensor) -> Verdict:
    """As `accept`, row by row as the rule asks: most rules visit few rows of a tree and draw one token."""
    scores = sampler.scores(logits, row_paths(tree))
    depths = [0, *tree.depths]

    def law(row: int) -> Tensor:
        return sampler.law(scores[row : row + 1])[0]

    def token(row: int) -> int:
        return sampler.draw(scores[row : row + 1], [depths[row]])[0]

    return rule.accept(tree, law, SamplerDraws(sampler, token))


def row_paths(tree: DraftTree) -> list[list[int]]:
    """Drafted tokens before each row's next one, its own included, [N + 1] lists."""
    paths: list[list[int]] = [[]]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        paths.append([*paths[parent + 1], token])
    return paths


def no_law(row: int) -> Tensor:
    raise AssertionError(f"a rule that says it needs no laws asked for row {row}'s")
