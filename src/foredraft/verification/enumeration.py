"""Exact laws of acceptance rules, found by trying every outcome of every random decision.

A test double for rules of one's own. On a vocabulary of three or four tokens a rule is exact when

    output_law(rule, draft=draft, target=target, length=3) == plain_law(target, 3)

up to rounding, for every draft and target; a rule that is merely close is off by far more.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.verification.draws import Accept, Law

Outcome = TypeVar("Outcome")
Target = Callable[[tuple[int, ...]], Tensor]
"""The law of the token after a context, float64 [V]."""


@dataclass(slots=True)
class Branch:
    """One way through a program's random decisions: a given prefix of choices, then the first possible ones.

    Attributes:
        prefix: Choices to repeat.
        taken: Choices made so far.
        probability: That of all choices made so far.
        untried: Prefixes that lead to the other outcomes of the decisions after the prefix.
    """

    prefix: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    probability: float = 1.0
    untried: list[list[int]] = field(default_factory=list)

    def choose(self, probabilities: Tensor) -> int:
        """An index of `probabilities`, which sum to 1; never one of probability 0."""
        chances = probabilities.tolist()
        assert abs(sum(chances) - 1) < 1e-9 and min(chances) >= 0, f"{chances} is no distribution"
        if len(self.taken) < len(self.prefix):
            choice = self.prefix[len(self.taken)]
        else:
            choice, *others = [i for i, chance in enumerate(chances) if chance > 0]
            self.untried += [[*self.taken, other] for other in others]
        self.taken.append(choice)
        self.probability *= chances[choice]
        return choice


Draft = Callable[[Branch], DraftTree]
"""Makes a draft, sampling with `branch.choose`."""


@dataclass(slots=True)
class EnumeratingDraws:
    """`Draws` that take one branch of all outcomes of a rule on `tree`."""

    branch: Branch
    tree: DraftTree
    law: Law
    asked: set[int] = field(default_factory=set)

    def token(self, row: int) -> int:
        depth = len(self.tree.path(row - 1))
        assert depth not in self.asked, f"a second token at depth {depth} would not be independent of the first"
        self.asked.add(depth)
        return self.branch.choose(self.law(row))

    def coin(self, probability: float) -> bool:
        return self.branch.choose(torch.tensor([1 - probability, probability], dtype=torch.float64)) == 1

    def residual(self, weights: Tensor) -> int:
        return self.branch.choose(weights / weights.sum())


def every_outcome(program: Callable[[Branch], Outcome]) -> Iterator[tuple[float, Outcome]]:
    """Run `program` once for each way its choices can fall out; yields the way's probability and the result."""
    pending = [[]]
    while pending:
        branch = Branch(pending.pop())
        result = program(branch)
        pending += branch.untried
        yield branch.probability, result


def emitted_runs(rule: Accept, draft: Draft, target: Target) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every run of tokens one round can write, with a probability; the same run may come more than once."""

    def one_round(branch: Branch) -> tuple[int, ...]:
        tree = draft(branch)

        def law(row: int) -> Tensor:
            return target(tuple(tree.path_tokens(row - 1)))

        verdict = rule(tree, law, EnumeratingDraws(branch, tree, law))
        return (*(tree.tokens[node] for node in verdict.path), verdict.token)

    return every_outcome(one_round)


def plain_law(target: Target, length: int, context: tuple[int, ...] = ()) -> Tensor:
    """Joint law of the `length` tokens after `context` in plain sampling, [V] * length."""
    if length == 0:
        return torch.ones((), dtype=torch.float64)
    law = target(context)
    return torch.stack([p * plain_law(target, length - 1, (*context, token)) for token, p in enumerate(law)])


def output_law(rule: Accept, *, draft: Draft, target: Target, length: int) -> Tensor:
    """Joint law of the first `length` tokens when one round of speculation is followed by plain sampling."""
    runs: dict[tuple[int, ...], float] = defaultdict(float)
    for probability, run in emitted_runs(rule, draft, target):
        runs[run[:length]] += probability
    joint = torch.zeros([len(target(()))] * length, dtype=torch.float64)
    for run, probability in runs.items():
        joint[run] += probability * plain_law(target, length - len(run), run)
    return joint


def mean_accepted(rule: Accept, *, draft: Draft, target: Target) -> float:
    """Expected number of draft tokens one round keeps."""
    return sum(probability * (len(run) - 1) for probability, run in emitted_runs(rule, draft, target))
