"""Which drafters a request keeps ready: to be ready costs a little in every step, even for one that never drafts."""

from collections.abc import Sequence

from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.running import Option
from foredraft.engine.step_costs import option_label

ACCEPTANCE = 0.8  # the same for everybody, and high: what drafts cost is known, how good they are is not
NEAR_BEST = 0.75  # share of the best drafter's speed below which another one is left out


def shortlist(options: Sequence[Option], costs: LiveCosts) -> tuple[Option, ...]:
    """The options of those drafters whose drafts are cheap enough to come near the best one's speed, were they all
    accepted alike; drafters that cost next to nothing are never left out."""
    best: dict[int, float] = {}
    for option in options:
        best[id(option.drafter)] = max(best.get(id(option.drafter), 0.0), possible_speed(option, costs))
    judged = [best[id(option.drafter)] for option in options if not option.drafter.needs.instant]
    least = NEAR_BEST * max(judged, default=0.0)
    return tuple(option for option in options if option.drafter.needs.instant or best[id(option.drafter)] >= least)


def possible_speed(option: Option, costs: LiveCosts) -> float:
    """Committed tokens per second of a request alone whose drafts are accepted as `ACCEPTANCE` says."""
    depth = option.speculation.depth
    gain = sum(ACCEPTANCE**position for position in range(1, depth + 1))
    seconds = costs.step_seconds(1 + depth, 1, 0, False) + costs.draft_seconds(option_label(option.speculation), 1)
    return (1.0 + gain) / seconds
