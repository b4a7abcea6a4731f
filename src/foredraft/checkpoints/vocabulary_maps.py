"""The maps between a reduced draft vocabulary and the target's."""

import torch
from torch import Tensor

from foredraft.checkpoints.head import Tensors
from foredraft.checkpoints.head_source import HeadSource
from foredraft.core.errors import ModelError, require
from foredraft.heads.shared import draft_ids


def checked_maps(source: HeadSource, d2t: Tensor | None, t2d: Tensor | None, draft: int, vocabulary: int) -> Tensors:
    """`d2t` [V_draft] and `t2d` [V] in canonical dtypes; empty where the two vocabularies are one.

    Raises `ModelError` where they lead out of the vocabulary, twice to a token, or disagree.
    """
    if draft == vocabulary:
        require(d2t is None or not d2t.any(), f"d2t moves ids, yet the draft vocabulary is all of {draft}", ModelError)
        return {}
    require(
        d2t is not None, f"tensor d2t missing: it maps {draft} draft ids into a vocabulary of {vocabulary}", ModelError
    )
    require(d2t.shape == (draft,), f"tensor d2t is {list(d2t.shape)}; lm_head makes it [{draft}]", ModelError)
    member = membership(d2t.to(torch.int64), vocabulary)
    source.note(t2d is None, "no t2d: made from d2t")
    if t2d is not None:
        require(
            t2d.shape == member.shape,
            f"tensor t2d is {list(t2d.shape)}; the vocabulary makes it [{vocabulary}]",
            ModelError,
        )
        require(bool((t2d.bool() == member).all()), "t2d and d2t name different tokens", ModelError)
    return {"d2t": d2t.to(torch.int64), "t2d": member}


def membership(d2t: Tensor, vocabulary: int) -> Tensor:
    """Which target tokens the offsets `d2t` lead to, [V] bool."""
    ids = draft_ids(d2t)
    inside = bool(((ids >= 0) & (ids < vocabulary)).all())
    message = f"d2t leads to token {int(ids.max())} of {vocabulary}; it must hold target id minus draft id, no ids"
    require(inside, message, ModelError)
    require(len(ids.unique()) == len(ids), "d2t leads two draft ids to one token", ModelError)
    member = torch.zeros(vocabulary, dtype=torch.bool)
    member[ids] = True
    return member
