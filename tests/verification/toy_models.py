"""Toy models and drafts for exact enumeration: laws over a few tokens that depend on the whole context."""

import random
from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.verification.enumeration import Branch, Draft, Target


def law_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64)


def toy_model(seed: int, *, tokens: int = 3, zeros: int = 0) -> Target:
    """A random law for each context; `zeros` of its tokens have probability 0."""

    @cache
    def law(context: tuple[int, ...]) -> Tensor:
        chance = random.Random(f"{seed} {context}")
        weights = [chance.random() ** 2 + 0.01 for _ in range(tokens)]
        for token in chance.sample(range(tokens), zeros):
            weights[token] = 0.0
        return law_of(*(weight / sum(weights) for weight in weights))

    return law


def same_everywhere(*probabilities: float) -> Target:
    law = law_of(*probabilities)
    return lambda context: law


def sampled_chain(model: Target, length: int, stops: Callable[[int], bool] = lambda token: False) -> Draft:
    """A chain drawn from `model`; it ends early after a token that `stops`."""

    def draft(branch: Branch) -> DraftTree:
        tokens: list[int] = []
        while len(tokens) < length and not (tokens and stops(tokens[-1])):
            tokens.append(branch.choose(model(tuple(tokens))))
        laws = [model(tuple(tokens[:i])) for i in range(len(tokens))]
        return DraftTree.chain(tokens, "toy", laws=[*laws, None])

    return draft


def sampled_tree(model: Target, shape: dict[tuple[int, ...], int], *, replacement: bool) -> Draft:
    """A tree drawn from `model`; `shape` tells how many children the node at a path of ranks has, () being the root."""

    def draft(branch: Branch) -> DraftTree:
        tree = DraftTree(laws=[None], replacement=replacement)

        def grow(parent: int, ranks: tuple[int, ...]) -> None:
            law = model(tuple(tree.path_tokens(parent)))
            for rank, token in enumerate(drawn(branch, law, shape.get(ranks, 0), replacement)):
                node = tree.add(token, parent, "toy")
                tree.laws[parent + 1] = law
                tree.laws.append(None)
                grow(node, (*ranks, rank))

        grow(ROOT, ())
        return tree

    return draft


def drawn(branch: Branch, law: Tensor, count: int, replacement: bool) -> Iterator[int]:
    """`count` tokens of `law` one after another; fewer where it runs out."""
    for _ in range(count):
        if law.sum() == 0:
            return
        token = branch.choose(law if replacement else law / law.sum())
        yield token
        if not replacement:
            law = law.index_fill(0, torch.tensor(token), 0.0)


def likeliest_tree(model: Target, shape: dict[tuple[int, ...], int]) -> Draft:
    """A tree of the model's likeliest tokens: nothing in it is drawn."""

    def draft(branch: Branch) -> DraftTree:
        tree = DraftTree()

        def grow(parent: int, ranks: tuple[int, ...]) -> None:
            law = model(tuple(tree.path_tokens(parent)))
            for rank, token in enumerate(law.argsort(descending=True)[: shape.get(ranks, 0)].tolist()):
                grow(tree.add(token, parent, "toy"), (*ranks, rank))

        grow(ROOT, ())
        return tree

    return draft


def chain_shape(length: int) -> dict[tuple[int, ...], int]:
    return {(0,) * depth: 1 for depth in range(length)}
