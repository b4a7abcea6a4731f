"""For how many further steps a decision stands: acceptance moves slowly, and deciding takes time."""

from collections.abc import Sequence

from foredraft.engine.policy.live_costs import MANY
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.running import Work

HOLD_STEPS, HOLD_MORE = 3, 7  # further steps for which a decision stands at least, of few requests and of many
DECIDING, DECIDING_EACH = 5e-4, 3e-4  # seconds that a decision takes, and more for each request
DECIDING_SHARE = 0.02  # of the time that deciding may take: where steps are short, decisions stand for longer
DECIDING_SHARE_FEW = 0.005  # and beside few others: what is decided then is drafted as if nobody had an instant draft
HOLD_MOST, HOLD_MOST_BESIDE = 32, 48
HOLD_WEIGHED = 24  # and where drafts are weighed in every step: which of them are worth asking for changes sooner
HOLD_UNTRIED = 16  # and where nobody has seen yet what some call for so many requests takes: it may be much more
HOLD_IDLE = 32  # and where few requests are not drafted for: drafts for few mostly pay, so that is soon wrong
WORTH_DECIDING = 4  # tokens that one of several requests must still have to write for a decision to pay
DOUBLINGS = 2  # of the steps that a decision stands for, where several requests were decided not to be drafted for


def hold_for(requests: int, plain_seconds: float, *, untried: bool = False) -> int:
    """Further steps that a decision for so many requests stands for, where a plain step takes so long; `untried` where
    it has a drafter called for as many for the first time."""
    least = HOLD_STEPS if requests < MANY else HOLD_MORE
    share = DECIDING_SHARE_FEW if 1 < requests < MANY else DECIDING_SHARE
    worth = (DECIDING + DECIDING_EACH * requests) / (share * plain_seconds)
    most = HOLD_MOST if requests == 1 else HOLD_UNTRIED if untried else HOLD_MOST_BESIDE
    return max(least, min(most, round(worth)))


def outlasts(beginning: int, requests: int) -> bool:
    """Whether a decision stands where so many of the requests begin: beside many, one or two that come are no reason to
    look at all again."""
    return MANY * beginning <= requests


def waits(deciding: Sequence[tuple[Work, RequestPolicy]]) -> bool:
    """Whether several requests go without a decision: so many of them are at the ends of their prompts that the next
    step decides for all, or all are about to end."""
    if len(deciding) == 1 or any([its.fixed for _, its in deciding]):
        return False
    if not outlasts(sum([work.chunk > 1 for work, _ in deciding]), len(deciding)):
        return True
    return max([work.running.request.remaining for work, _ in deciding]) < WORTH_DECIDING


def patience(vain: int) -> int:
    """How often to double the time that a decision stands for, the last of so many in a row not to draft: nobody's
    drafts pay there, and looking again is all that speculation costs."""
    return min(max(0, vain - 1), DOUBLINGS)
