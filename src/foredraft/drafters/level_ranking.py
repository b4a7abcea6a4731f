"""The best tokens of many rows at once, where a drafter's raw logits say all there is to say.

No row is then scattered over the target's vocabulary, and one pass ranks the rows of all requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from foredraft.drafters.draft_choice import under_noise
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
    rows = [PlainRows(draft.task, own, [draft.level] * len(own)) for draft, own in drafts]
    gains, tokens = plainly_ranked(rows, max(draft.width for draft, _ in drafts), target_ids)
    row = 0
    for draft, own in drafts:
        mine, row = slice(row, row + len(own)), row + len(own)
        draft.hang_level([best[: draft.width] for best in tokens[mine]], [best[: draft.width] for best in gains[mine]])


@dataclass(eq=False, slots=True)
class PlainRows:
    """One request's rows, of which `plainly_chosen` is true.

    Attributes:
        task: What to draft.
        logits: Raw, [R, V_draft].
        depths: Of each row, [R]; 0 where the root's child is guessed.
    """

    task: DraftTask
    logits: Tensor
    depths: list[int]

    @property
    def keys(self) -> list[int | None]:
        """What the noise of each row is made of; none without noise."""
        sampler, first = self.task.sampler, len(self.task.sampler.history)
        noisy = under_noise(self.task)
        return sampler.keys([first + depth for depth in self.depths]) if noisy else [None] * len(self.depths)

    def fitted(self, target_ids: Tensor | None) -> Tensor:
        """Logits without those past the target's vocabulary, which pad it."""
        rows = self.task.sampler.vocabulary.rows
        padded = target_ids is None and self.logits.shape[1] > rows
        return self.logits[:, :rows] if padded else self.logits

    def values(self, target_ids: Tensor | None) -> Tensor:
        """What a token is the largest of, [R, V_draft]."""
        sampler, logits = self.task.sampler, self.fitted(target_ids)
        if sampler.greedy:
            return logits
        scores = logits.float() / sampler.divisor
        if not under_noise(self.task):
            return scores
        noise = sampler.noise_rows(self.depths, scores.new_empty(0, sampler.vocabulary.rows))
        return scores + (noise[:, : scores.shape[1]] if target_ids is None else noise.index_select(1, target_ids))


Best = tuple[list[list[float]], list[list[int]]]  # log-shares of the best of each row, falling, and their tokens


def plainly_ranked(requests: Sequence[PlainRows], count: int, target_ids: Tensor | None) -> Best:
    """The `count` best tokens of each row of all requests.

    On the native path a row's noise is worked out for the few tokens that might be among them.
    """
    if not natively_chosen(requests[0].logits):
        return ranked([rows.values(target_ids) for rows in requests], count, target_ids)
    divisors = [rows.task.sampler.divisor for rows in requests for _ in rows.depths]
    keys = [key for rows in requests for key in rows.keys]
    return native_best([rows.fitted(target_ids) for rows in requests], count, divisors, keys, target_ids)


def ranked(values: Sequence[Tensor], count: int, target_ids: Tensor | None = None) -> Best:
    """The `count` largest of each row of `values`, [R, V_draft] each."""
    if natively_chosen(values[0]):
        return native_best(list(values), count, None, None, target_ids)
    rows = torch.cat([own.float() for own in values])
    best, places = rows.topk(min(count, rows.shape[1]), dim=-1)
    gains, tokens = best - rows.logsumexp(-1, keepdim=True), places if target_ids is None else target_ids[places]
    return gains.tolist(), tokens.tolist()


def native_best(
    logits: list[Tensor],
    count: int,
    divisors: list[float] | None,
    keys: list[int | None] | None,
    target_ids: Tensor | None,
) -> Best:
    count = min(count, logits[0].shape[1])
    best, tokens, totals = native.drawn_top(logits, count, divisors, keys, target_ids)
    return [[value - total for value in row] for row, total in zip(best, totals, strict=True)], tokens


def scattered(logits: Tensor, ids: Tensor | None, width: int) -> Tensor:
    """Logits [D, V_draft] of the tokens `ids` in rows of `width`, the rest -inf."""
    if ids is None:
        return logits
    wide = logits.new_full((len(logits), width), -inf)
    wide[:, ids] = logits
    return wide
