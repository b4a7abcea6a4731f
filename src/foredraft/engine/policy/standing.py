"""A decision that stands: for whom, for how long, and how to go on by it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import ceil

from foredraft.engine.policy.allocation import Values
from foredraft.engine.policy.decision import StepPrices
from foredraft.engine.policy.holding import HOLD_IDLE, HOLD_STEPS, HOLD_WEIGHED, MANY
from foredraft.engine.policy.pace import Pace
from foredraft.engine.policy.request_policy import MANY_CLASS, RequestPolicy
from foredraft.engine.policy.routine import Account, Pair, Routine
from foredraft.engine.policy.seat import Seat

SAME_SHARE = 0.5  # of the requests that must have been there when it was made
CHECK_EVERY = 16  # steps after which it is looked whether asking for all still pays
TRY_EVERY, TRY_STEPS, TRY_LEAST = 32, 6, 2  # steps after which asking for all is tried again, and for how many
TEACHES = (4, 8, 8)  # of so many steps that a decision stands for one is learned from in full, by crowd


@dataclass(eq=False)
class Standing:
    """The last decision about so many requests.

    Attributes:
        crowd: How many, by class.
        values: By what plans are compared since; none before the first.
        prices: What the last step cost that was thought about.
        held: Requests that take part.
        steps, most: Steps since, and further ones it stands for.
        since_tried: Steps since it was last looked whether asking for all pays, or a try of that began or ended.
        routine: How steps go on until the next decision, where that takes no thought; else none.
        pace: What such steps have had and brought where instant drafts are looked at first.
    """

    crowd: int
    values: Values | None = None
    prices: StepPrices | None = None
    held: set[RequestPolicy] = field(default_factory=set)
    steps: int = 0
    most: int = HOLD_STEPS
    since_tried: int = TRY_EVERY
    routine: Routine | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def alone(self) -> bool:
        return self.crowd == 0

    @property
    def lasts(self) -> bool:
        return self.steps <= self.most

    @property
    def least(self) -> int:
        """Fewest of its requests for which it stands."""
        return 1 if self.alone else ceil(SAME_SHARE * len(self.held))

    def holds(self, known: Sequence[RequestPolicy]) -> bool:
        """Whether what was decided before still stands, a few steps later and for mostly the same requests as `known`:
        acceptance moves slowly, and deciding takes time."""
        return self.lasts and sum([its in self.held for its in known]) >= max(SAME_SHARE * len(known), self.least)

    def go_on_by(self, routine: Routine | None) -> None:
        """So steps go on. A decision stands for fewer where they are thought about, or few are not drafted for."""
        self.routine = routine
        if routine is None or (self.alone and routine.firsts):
            self.most = min(self.most, HOLD_WEIGHED)
        elif not routine.drafts and len(self.held) < MANY:
            self.most = min(self.most, HOLD_IDLE)

    @property
    def turns(self) -> bool:
        """Whether it is time to look whether asking for all still pays, or to try it where it was decided not to, or to
        end a try: what was seen of one text says little of the next."""
        if self.routine.asks_all:
            return self.since_tried > CHECK_EVERY
        if self.routine.tried:
            return self.since_tried > TRY_STEPS or (self.since_tried == TRY_LEAST + 1 and self.routine.finds_nothing)
        return self.crowd == MANY_CLASS and self.since_tried > TRY_EVERY

    def turn(self, deciding: Sequence[Pair]) -> None:
        """Look, or begin to try, or end a try: the next step decides anew where what was decided no longer holds."""
        routine, self.since_tried = self.routine, 1
        if not (routine.asks_all or routine.tried):
            routine.try_asking(deciding, self.values)
            if routine.tried:
                self.most = max(self.most, self.steps + TRY_STEPS)
            return
        if routine.pays(self.values) is not routine.asks_all:
            self.most = self.steps
        routine.tried = {}

    def closed(self) -> list[Account]:
        """What has been written by routine since it was counted last, by way."""
        routine, accounts = self.routine, self.routine.closed()
        steps = sum([its.steps for its in accounts])
        if routine.firsts and routine.quiet and steps:
            nodes, tokens = sum([its.nodes for its in accounts]), sum([its.tokens for its in accounts])
            self.pace.follow(nodes / steps, tokens / steps * routine.quiet / routine.seconds, routine.quiet)
        routine.quiet, routine.seconds = 0, 0.0
        return accounts

    def leave_routine(self, deciding: Sequence[Pair]) -> None:
        """Think again about those who decide; who has joined by routine takes part."""
        if self.routine is not None:
            joined = {its for _, its in deciding if its in self.routine.places}
            self.held = joined if self.alone else self.held | joined
            self.routine = None

    def renew(self, known: set[RequestPolicy], values: Values, most: int) -> None:
        """Another decision about `known`, which stands for so many further steps at `most`."""
        self.held, self.values, self.steps, self.most = known, values, 0, most
        values.pace = self.pace

    def admit(self, seats: Sequence[Seat], reading: Callable[[str, int], float]) -> None:
        """Those of `seats` who have come since take part: by the plan that is worth most by its values; `reading` as in
        `Seat.menu`."""
        for seat in seats:
            if not (seat.known in self.held or seat.known.fixed or seat.begins):
                menu = seat.menu(reading, self.pace.called, hopeful=False)
                seat.take(max(menu, key=self.values.of), menu, self.values)
                self.held.add(seat.known)

    def drop(self) -> None:
        """Nothing is decided any more."""
        self.values, self.prices, self.held, self.routine = None, None, set(), None

    @property
    def every(self) -> int:
        """Steps of which one is learned from in full: of every decision that stands for any."""
        return min(TEACHES[self.crowd], max(self.most, 1))

    @property
    def teaches(self) -> bool:
        """Whether costs and stated chances are learned from this step: one in four will do, beside others fewer."""
        return self.steps % self.every == 0
