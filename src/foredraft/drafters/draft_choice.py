"""How a drafter turns its own logits into drafted tokens: coupled, greedy or sampled."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from foredraft.drafters.drafter import DraftTask
from foredraft.sampling.noise import gumbel, mixed_int, stream_salt


class Choice(Protocol):
    """Orders the tokens that may follow one row of a draft."""

    def order(self, scores: Tensor, depths: list[int], rows: list[int]) -> tuple[Tensor, list[Tensor | None]]:
        """Values to take the largest of, [R, V], and the law they were drawn from where they were.

        `scores` are the drafter's processed logits, `depths` the depth of each row (0 for the root), `rows` a number
        for each that no other row of this draft has.
        """


@dataclass(frozen=True, slots=True)
class Coupled:
    """`log q + gumbel`, with the noise the target itself will use at that position (Daliri et al. 2024)."""

    task: DraftTask

    def order(self, scores: Tensor, depths: list[int], rows: list[int]) -> tuple[Tensor, list[Tensor | None]]:
        return self.task.sampler.perturbed(scores, depths), [None] * len(rows)


@dataclass(frozen=True, slots=True)
class Greedy:
    """The likeliest tokens."""

    task: DraftTask

    def order(self, scores: Tensor, depths: list[int], rows: list[int]) -> tuple[Tensor, list[Tensor | None]]:
        return scores, [None] * len(rows)


@dataclass(frozen=True, slots=True)
class Probabilistic:
    """Samples of the drafter's law, in the order drawn without replacement (Gumbel top-k, Kool et al. 2019).

    The noise is keyed by the root's position too: a later round that drafts for the same position again must not see
    the noise an earlier verdict depended on.
    """

    task: DraftTask

    def order(self, scores: Tensor, depths: list[int], rows: list[int]) -> tuple[Tensor, list[Tensor | None]]:
        laws = self.task.sampler.law(scores)  # [R, V] float64
        seed = mixed_int(mixed_int(self.task.request.seed ^ stream_salt("draft")) + len(self.task.request.tokens))
        return laws.log() + gumbel(seed, rows, laws.shape[-1], laws.device), list(laws)


CHOICES = {"coupled": Coupled, "greedy": Greedy, "probabilistic": Probabilistic}


def choices_for(task: DraftTask) -> Choice:
    return CHOICES[task.speculation.draft_sampling](task)


def under_noise(task: DraftTask) -> bool:
    """Whether tokens are chosen under the target's own noise."""
    return task.speculation.draft_sampling == "coupled" and not task.sampler.greedy


def plainly_ordered(task: DraftTask) -> bool:
    """Whether raw logits say all there is to say of a draft, its end included: where tokens are plainly chosen, and no
    chain asks how sure its drafter is of a token that noise had a part in."""
    config = task.speculation
    asks = config.draft_confidence_threshold and not config.branches
    return plainly_chosen(task) and not (asks and under_noise(task))


def plainly_chosen(task: DraftTask) -> bool:
    """Whether drafted tokens are the largest of raw logits, over a divisor and under the target's noise at most."""
    sampler = task.sampler
    drawn = task.speculation.draft_sampling == "probabilistic"
    return not drawn and (sampler.plain_greedy or (not sampler.greedy and sampler.plain))
