"""What a head borrows from its target, and the ids of a reduced draft vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Borrowed:
    """The target's embedding and output layer, used by a head and no part of its weights.

    Attributes:
        embed: Token ids [...] to [..., hidden].
        head: Final hidden states [..., hidden] to logits [..., V].
    """

    embed: nn.Module
    head: nn.Module


def draft_ids(d2t: Tensor) -> Tensor:
    """Target id of each draft id, [V_draft]: `d2t` stores offsets, not ids."""
    return d2t + torch.arange(len(d2t), device=d2t.device)


def vocabulary_maps(ids: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """`d2t` offsets [V_draft] int64 and `t2d` membership [V] bool of ascending target `ids`."""
    assert (ids[1:] > ids[:-1]).all()
    member = torch.zeros(vocabulary, dtype=torch.bool)
    member[ids] = True
    return ids - torch.arange(len(ids)), member
