"""The best tokens of many rows at once, where a drafter's raw logits say all there is to say.

No row is then scattered over the target's vocabulary, and one pass ranks the rows of all requests.
"""

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from foredraft.core.plan_builder import integers
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.growing_tree import GrowingTree
from foredraft.sampling.noise import native, natively_chosen


def grow(drafts: Sequence[GrowingTree], logits: Tensor, target_ids: Tensor | None = None) -> None:
    """Hang children below the rows just run, whose logits are [open rows of all drafts, V_draft].

    `target_ids` [V_draft] are given where the drafter's vocabulary is not the target's.
    """
    parts = logits.split([draft.open_rows for draft in drafts]) if len(drafts) > 1 else [logits]
    plain = []
    for draft, own in zip(drafts, parts, strict=True):
        if draft.plain:
            plain.append((draft, own))
        else:
            draft.extend(scattered(own, target_ids, draft.task.sampler.vocabulary.rows))
    if plain:
        grow_plain(plain, target_ids)


def grow_plain(drafts: Sequence[tuple[GrowingTree, Tensor]], target_ids: Tensor | None) -> None:
    values = [plain_values(draft.task, own, draft.level, target_ids) for draft, own in drafts]
    gains, tokens = ranked(values, max(draft.width for draft, _ in drafts), target_ids)
    row = 0
    for draft, own in drafts:
        rows, row = slice(row, row + len(own)), row + len(own)
        draft.hang_level([best[: draft.width] for best in tokens[rows]], [best[: draft.width] for best in gains[rows]])


def plain_values(task: DraftTask, logits: Tensor, depth: int | list[int], target_ids: Tensor | None) -> Tensor:
    """What a plainly chosen token is the largest of, [R, V_draft], from raw logits of rows at one depth or several."""
    sampler = task.sampler
    if target_ids is None and logits.shape[1] > sampler.vocabulary.rows:
        logits = logits[:, : sampler.vocabulary.rows]
    if sampler.greedy:
        return logits
    scores = logits.float()
    if sampler.divisor != 1:
        scores = scores / sampler.divisor
    if task.speculation.draft_sampling == "greedy":
        return scores
    noise = sampler.noise_rows(
        [depth] if isinstance(depth, int) else depth, scores.new_empty(0, sampler.vocabulary.rows)
    )
    return scores + (noise[:, : scores.shape[1]] if target_ids is None else noise.index_select(1, target_ids))


def ranked(
    values: Sequence[Tensor], count: int, target_ids: Tensor | None = None
) -> tuple[list[list[float]], list[list[int]]]:
    """The `count` largest of each row of `values`, [R, V_draft] each: their log-shares of the row, and their tokens."""
    count = min(count, values[0].shape[1])
    if natively_chosen(values[0]):
        best, tokens = native.top(list(values), count)
        sums = native.log_sum_exp(list(values))
        gains = [[value - total for value in row] for row, total in zip(best, sums, strict=True)]
    else:
        rows = torch.cat([own.float() for own in values])
        best, places = rows.topk(count, dim=-1)
        gains, tokens = (best - rows.logsumexp(-1, keepdim=True)).tolist(), places.tolist()
    if target_ids is None:
        return gains, tokens
    named = target_ids.take(integers([place for row in tokens for place in row], target_ids.device)).tolist()
    return gains, [named[start : start + count] for start in range(0, len(named), count)]


def scattered(logits: Tensor, ids: Tensor | None, width: int) -> Tensor:
    """Logits [D, V_draft] of the tokens `ids` in rows of `width`, the rest -inf."""
    if ids is None:
        return logits
    wide = logits.new_full((len(logits), width), -inf)
    wide[:, ids] = logits
    return wide
