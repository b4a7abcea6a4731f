"""The tokens a drafter with a small vocabulary can say."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.training.samples import Sample

COUNTED_AT_ONCE = 4096  # samples


def choose_vocabulary(samples: Sequence[Sample], size: int, vocabulary_rows: int, always: Iterable[int] = ()) -> Tensor:
    """The `size` tokens written most, ascending ids [size] int64; of two written as often, the lower id.

    Args:
        samples: Whose written tokens are counted.
        size: How many, from 1 to `vocabulary_rows`.
        vocabulary_rows: Ids to choose from: those below it.
        always: Ids that are chosen however rare they are, such as end tokens.

    Raises `ConfigError` where `size` is out of range or too small for `always`.
    """
    whole("draft_vocabulary", size, 1, vocabulary_rows)
    fixed = sorted(set(always))
    room = f"draft_vocabulary is {size}; it must hold the {len(fixed)} end tokens at least"
    require(len(fixed) <= size, room)
    counts = written_counts(samples, vocabulary_rows)
    counts[fixed] = torch.iinfo(torch.int64).max
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def coverage(samples: Sequence[Sample], ids: Tensor, vocabulary_rows: int) -> float:
    """Share of the samples' written tokens that are among `ids`; 1 where none is written."""
    counts = written_counts(samples, vocabulary_rows)
    return float(counts[ids].sum() / counts.sum()) if counts.any() else 1.0


def written_counts(samples: Sequence[Sample], vocabulary_rows: int) -> Tensor:
    """How often each token is written, [V] int64."""
    counts = torch.zeros(vocabulary_rows, dtype=torch.int64)
    for first in range(0, len(samples), COUNTED_AT_ONCE):
        tokens = torch.tensor(list(written_tokens(samples[first : first + COUNTED_AT_ONCE])), dtype=torch.int64)
        counts += torch.bincount(tokens, minlength=vocabulary_rows)
    return counts


def written_tokens(samples: Iterable[Sample]) -> Iterator[int]:
    for sample in samples:
        yield from (token for token, own in zip(sample.tokens, sample.written, strict=True) if own)
