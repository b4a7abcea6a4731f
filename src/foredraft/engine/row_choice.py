"""Which steps let the target's own forward choose the tokens, so that logits need not leave it."""

from collections.abc import Sequence

from foredraft.core.step_plan import TokenChoice
from foredraft.engine.running import Work
from foredraft.sampling.joint_choice import divisors_together, keys_together, split


def choice_of(batch: Sequence[Work]) -> TokenChoice | None:
    """What is asked of a forward whose every wanted row needs no more for its token than logits and noise; none for
    other steps, and where greedy requests meet others."""
    works = [work for work in batch if work.logit_rows]
    if not works or not all(map(chooses_alone, works)):
        return None
    samplers, logits = [work.running.sampler for work in works], any([work.running.wants_logits for work in works])
    if all([sampler.plain_greedy for sampler in samplers]):
        return TokenChoice(logits=logits)
    if any([sampler.greedy or not sampler.plain for sampler in samplers]):
        return None
    depths = [[0, *work.tree.depths] for work in works]
    divisors = divisors_together(samplers, depths)
    return TokenChoice(logits=logits, divisors=divisors, keys=keys_together(samplers, depths))


def chooses_alone(work: Work) -> bool:
    """Whether its rows are those of a decision, a token each."""
    return work.decides and work.logit_rows == work.decision_rows and not work.tree.probes and work.needs_no_law


def told(batch: Sequence[Work], tokens: list[int]) -> dict[int, list[int]]:
    """The tokens [R] of a forward that chose, by id of work."""
    works = [work for work in batch if work.logit_rows]
    return dict(zip(map(id, works), split(tokens, [work.logit_rows for work in works]), strict=True))
