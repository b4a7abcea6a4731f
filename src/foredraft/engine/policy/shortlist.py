"""Which drafters a request keeps ready: to be ready costs a little in every step, even for one that never drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.running import Option

ACCEPTANCE = 0.8  # the same for everybody, and high: what drafts cost is known, how good they are is not
NEAR_BEST = 0.75  # share of the best drafter's speed below which another one is left out
CONTEXT = 64  # positions
FEW = 2  # requests
STANDS = 16  # requests for which a list is good: costs move slowly, and requests may be short


@dataclass(eq=False)
class Listed:
    """A list, of which options, and how many requests may still go by it."""

    options: tuple[Option, ...]
    short: tuple[Option, ...]
    left: int = STANDS


@dataclass(eq=False)
class Shortlists:
    """Short lists by number of requests, each made anew now and then."""

    lists: dict[int, Listed] = field(default_factory=dict)

    def of(self, options: tuple[Option, ...], costs: LiveCosts, requests: int) -> tuple[Option, ...]:
        """`shortlist(options, costs, requests)` as it was not long ago."""
        known = self.lists.get(requests)
        if known is None or known.options is not options or known.left == 0:
            known = self.lists[requests] = Listed(options, shortlist(options, costs, requests))
        known.left -= 1
        return known.short


def shortlist(options: Sequence[Option], costs: LiveCosts, requests: int = 1) -> tuple[Option, ...]:
    """Those options whose drafts are cheap enough to come near the best one's speed, were they all accepted alike, for
    one request or for all of `requests`, of drafters that may beat plain decoding of these. Those that cost next to
    nothing are left out only where many requests run and they need a ranking of the target's likeliest tokens in every
    step."""
    slow = [option for option in options if not option.drafter.needs.instant]
    near = set().union(*(near_best(slow, costs, count) for count in {1, requests}))
    paying = {id(option.drafter) for option in slow if may_pay(option, costs, requests)}

    def kept(option: Option) -> bool:
        needs = option.drafter.needs
        if needs.instant:
            return not needs.successors or requests <= FEW
        return id(option) in near and id(option.drafter) in paying

    return tuple(option for option in options if kept(option))


def near_best(options: Sequence[Option], costs: LiveCosts, requests: int) -> set[int]:
    """Those that come near the best one's speed for so many requests, by id."""
    speeds = {id(option): possible_speed(option, costs, requests) for option in options}
    least = NEAR_BEST * max(speeds.values(), default=0.0)
    return {name for name, speed in speeds.items() if speed >= least}


def may_pay(option: Option, costs: LiveCosts, requests: int) -> bool:
    """Whether drafts for all of `requests` requests could beat plain decoding; for one, only a try can tell."""
    plain = requests / costs.step_seconds(requests, requests, CONTEXT, False)
    return requests == 1 or possible_speed(option, costs, requests) > plain


def possible_speed(option: Option, costs: LiveCosts, requests: int) -> float:
    """Committed tokens per second of requests whose drafts are accepted as `ACCEPTANCE` says."""
    depth = option.speculation.depth
    gain = sum(ACCEPTANCE**position for position in range(1, depth + 1))
    seconds = costs.step_seconds(requests * (1 + depth), requests, CONTEXT, False)
    return requests * (1.0 + gain) / (seconds + costs.draft_seconds(option.way.label, requests))
