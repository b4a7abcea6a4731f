"""The speculation policy at work: asks drafters, chooses, and learns from what became of it."""

from collections.abc import Callable, Sequence
from math import ceil
from time import perf_counter
from typing import Any

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.request import Request
from foredraft.engine import step
from foredraft.engine.policy.allocation import PLAIN, Plan, Values, soundest
from foredraft.engine.policy.cutting import Cutting
from foredraft.engine.policy.decision import Decider, Experiment, StepPrices, within
from foredraft.engine.policy.experience import Experience
from foredraft.engine.policy.holding import HOLD_STEPS, hold_for, outlasts, patience, waits
from foredraft.engine.policy.instant_drafts import InstantDrafts, by_label
from foredraft.engine.policy.lesson import Call, Lesson, mean_context, prices_of, sampling
from foredraft.engine.policy.live_costs import LiveCosts, sort_of
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.routine import Routine, routine_of
from foredraft.engine.policy.seat import Seat, crowd_class, depth_of, temperature_class
from foredraft.engine.policy.shortlist import Shortlists
from foredraft.engine.policy.ways_taken import PLAIN_LABEL, WaysTaken
from foredraft.engine.running import Option, Running, Work
from foredraft.model.slot_pool import SlotPool
from foredraft.sampling.noise import sureness

TEACHES = (2, 4, 8)  # of so many steps that a decision stands for one is learned from in full, by crowd
SAME_SHARE = 0.5  # of the requests that must have been there when it was made


class Policy:
    """Chooses how each request is drafted for in each step.

    Attributes:
        draft_rows: Most draft nodes of one step over all requests.
        requests: What is known of each running request.
        experience: What all requests so far have taught, and which drafters have been worth keeping ready.
        shortlists: Which drafters are cheap enough to be kept ready.
        decider: Choices and what exploration has cost.
        taken: What was chosen.
        costs: What steps and drafts cost now; none until a request leaves a choice.
        deciding: The deciding requests of the current step, each with what is known of it.
        seats: The same at the table; by routine only those who are drafted for.
        values, experiment: By what plans are compared since the last decision, and what the current step tries.
        held, held_steps, hold_steps: Requests of the last decision, steps since, and further steps it stands for.
        routine: How steps go on until the next decision, where that takes no thought; else none.
        by_routine: Whether the current step goes by it, and nothing else is in it.
        instant: Asks for drafts that are looked at before anything is decided.
        called, surplus: Seconds of this step's calls of drafters that are not instant, and how many of these first
            drafts took beyond what was expected.
        networked: Whether one of these read a network.
        calls, lessons: This step's calls but those first ones, and what the steps since the last decision have taught.
        prices: What the current step costs; none where nobody leaves a choice.
        clock: Tells what calls of drafters take.
    """

    def __init__(self, *, draft_rows: int, clock: Callable[[], float] = perf_counter) -> None:
        self.draft_rows, self.clock = draft_rows, clock
        self.requests: dict[int, RequestPolicy] = {}
        self.experience, self.decider, self.shortlists = Experience(), Decider(), Shortlists()
        self.taken = WaysTaken()
        self.costs: LiveCosts | None = None
        self.deciding: list[tuple[Work, RequestPolicy]] = []
        self.seats: list[Seat] = []
        self.values: Values | None = None
        self.experiment: Experiment | None = None
        self.held: set[RequestPolicy] = set()
        self.held_steps, self.hold_steps = 0, HOLD_STEPS
        self.routine: Routine | None = None
        self.by_routine = False
        self.instant = InstantDrafts(clock)
        self.called = self.surplus = 0.0
        self.networked = False
        self.calls: list[Call] = []
        self.lessons: list[Lesson] = []
        self.prices: StepPrices | None = None

    def open(self, running: Running, requests: int = 1) -> None:
        """Begin to know a request, which is likely to be served beside others, `requests` in all."""
        request, fixed = running.request, not running.request.speculation.adaptive
        assert fixed or self.costs is not None
        ways, past = [option.way for option in running.options], self.experience.past
        kind = (temperature_class(request), crowd_class(requests))
        for way in ways if self.costs is not None else ():
            if way.instant:
                self.costs.light[way.label] = True
        self.requests[request.id] = RequestPolicy(ways, past, *kind, fixed=fixed)

    def seated(self, options: tuple[Option, ...], request: Request, requests: int = 1) -> tuple[Option, ...]:
        """The options of those drafters that take part in a request, one of `requests` served at once: all that its
        config names, else a short list, less those that have been of no use to requests of its kind."""
        if not request.speculation.adaptive or request.speculation.drafters or self.costs is None:
            return options
        kind = (temperature_class(request), crowd_class(requests))
        return self.experience.usefulness.useful(kind, self.shortlists.of(options, self.costs, requests), requests)

    def close(self, request: Request) -> None:
        """The request has finished or was cancelled."""
        self.take_in()
        known = self.requests.pop(request.id, None)
        if known is not None and not known.fixed:
            known.finish()
            self.experience.usefulness.saw((known.temperature_class, known.crowd), known.steps, known.saved)

    def start_over(self, request: Request) -> None:
        """The request has lost its cache slots: its drafters first catch up again, which says nothing of their cost."""
        self.requests[request.id].called.clear()

    def draft(self, batch: list[Work], pool: SlotPool) -> None:
        """Give every deciding request its draft for this step, with cache slots for the nodes."""
        self.forget_step()
        self.deciding = [(work, self.requests[work.running.request.id]) for work in batch if work.decides]
        crowd, rows = crowd_class(len(batch)), sum([work.chunk for work in batch])
        self.held_steps += 1
        if (
            self.routine is not None
            and self.held_steps <= self.hold_steps
            and self.routine.serves(self.deciding, crowd)
        ):
            self.go_on(pool, steady=rows == len(self.deciding))
            return
        self.settle()
        if all([its.fixed for _, its in self.deciding]):
            self.draft_fixed(pool)
            return
        held = self.holds([its for _, its in self.deciding])
        self.prices, self.routine = prices_of(batch, rows, self.costs, self.prices if held else None), None
        self.watch(crowd, held)
        if not held and waits(self.deciding):
            return
        self.seats = [Seat(work, its, depth_of(work), step=its.steps) for work, its in self.deciding]
        if held or self.opens(self.prices):
            self.choose(self.prices, held, pool)
            vain = not held and self.decider.in_vain(crowd, any([seat.known.drafts for seat in self.seats]))
            if held or self.rests:
                self.routine = routine_of(self.seats, self.least, crowd, self.draft_rows, anybody=vain)

    def draft_fixed(self, pool: SlotPool) -> None:
        """Draft where nothing is left to choose."""
        step.draft([(work, work.running.options[0]) for work, _ in self.deciding], pool)
        self.deciding, self.values, self.held, self.prices, self.routine = [], None, set(), None, None

    def opens(self, prices: StepPrices) -> bool:
        """Ask for instant drafts before a decision, and whether there is something to decide: where all requests are at
        the ends of their prompts other drafts are not there yet."""
        self.take_in()
        self.instant.ask(self.seats, prices, self.row_price)
        if any([seat.work.chunk == 1 or seat.known.fixed for seat in self.seats]):
            return True
        if any([offer.gain for seat in self.seats for offer in seat.offers.values()]):
            return True
        for seat in self.seats:
            for place in seat.offers:
                seat.known.saw_worth(place, 0.0, 0.0)
        self.seats = []
        return False

    @property
    def rests(self) -> bool:
        """Whether it was decided that nobody drafts, and no instant way is asked."""
        return self.experiment is None and not any([seat.known.drafts for seat in self.seats])

    def go_on(self, pool: SlotPool, *, steady: bool) -> None:
        """Draft by routine; a step in which prompts are read, too, is not `steady`, and is counted apart."""
        routine, self.by_routine = self.routine, steady
        if not (steady and routine.counts(self.deciding)):
            self.settle()
        if steady:
            routine.open(self.deciding)
        seats = self.seats = routine.seats(self.deciding)
        if not seats:
            return
        for seat, tree in self.timed(seats):
            step.place_draft(seat.work, tree, pool)

    def settle(self) -> None:
        """Count what was written in steps by routine."""
        routine = self.routine
        if routine is None:
            return
        self.decider.exploration.grow(routine.seconds, self.decider.recent)
        routine.seconds = 0.0
        for account in routine.closed():
            account.known.steps += account.steps
            if account.steps:
                spent = self.values.token * account.tokens
                self.taken.count(account.known.label(account.place), account.statistics, account.steps, spent)

    def forget_step(self) -> None:
        """What the step before has left belongs to its own lesson."""
        self.deciding, self.seats, self.experiment = [], [], None
        self.called, self.surplus, self.calls, self.by_routine = 0.0, 0.0, [], False
        self.networked = False
        self.instant.seconds, self.instant.calls = 0.0, []

    def watch(self, crowd: int, held: bool) -> None:
        """Note how many are served together, and look at the logits of those who are decided about."""
        for work, known in self.deciding:
            if known.crowd != crowd:
                self.take_in()  # it was served beside others
                known.move(known.level, crowd)
            work.watched = known.watches and (not held or work.chunk > 1)

    def choose(self, prices: StepPrices, held: bool, pool: SlotPool) -> None:
        """Decide, or where the last decision is `held` to look at instant drafts only, ask for the other drafts, and
        leave out what does not pay."""
        if held:
            self.admit()
            self.instant.ask_again(self.seats, prices, self.row_price)
            if not any(seat.offers or seat.known.base.place != PLAIN for seat in self.seats):
                return
            plans = self.best_together(prices)
        else:
            self.decide(prices)
            self.instant.settle(self.seats, prices, self.values)
            plans = self.final()
        plans, cutting = within(plans, self.room), Cutting(self.seats, prices, self.draft_rows)
        if self.experiment is None:
            plans = cutting.instant(plans)
        if not held:
            self.decider.note(plans, prices)
            self.hold_steps *= 2 ** patience(len(self.seats), self.decider.idle)
        for seat, plan in zip(self.seats, plans, strict=True):
            seat.place = plan.place
        self.place_all(cutting, pool)

    @property
    def row_price(self) -> float | None:
        """Tokens that a row costs by the last decision; none for a request alone, whose rows are priced exactly."""
        return None if len(self.seats) == 1 else self.values.row_price if self.values else 0.0

    @property
    def room(self) -> int:
        """Draft nodes left for requests that leave a choice."""
        return self.draft_rows - sum(seat.known.ways[0].nodes for seat in self.seats if seat.known.fixed)

    def place_all(self, cutting: Cutting, pool: SlotPool) -> None:
        """Ask for the drafts that are not there yet, leave out what does not pay, and give everybody's nodes their
        slots."""
        calling = [seat for seat in self.seats if seat.place != PLAIN and seat.place not in seat.offers]
        fresh = self.timed(calling) if calling else []
        whole = cutting.fresh(fresh, self.values.rate, self.decider.exploration) if fresh else []
        taken = [(seat, seat.offers[seat.place].kept) for seat in self.seats if seat.place in seat.offers]
        self.place(whole + taken, pool)

    def holds(self, known: Sequence[RequestPolicy]) -> bool:
        """Whether what was decided before still stands, a few steps later and for mostly the same requests as `known`:
        acceptance moves slowly, and deciding takes time. Who has come since drafts nothing but what instant drafts
        bring."""
        if self.held_steps > self.hold_steps or (len(self.held) == 1) != (len(known) == 1):
            return False
        return sum([its in self.held for its in known]) >= max(SAME_SHARE * len(known), self.least)

    def admit(self) -> None:
        """Who has come since the last decision takes part in it: the plan that is worth most by its values."""
        for seat in self.seats:
            if not (seat.known in self.held or seat.known.fixed or seat.begins):
                menu = seat.menu(self.costs.reading_seconds, hopeful=False)
                seat.take(max(menu, key=self.values.of), menu, self.values)
                self.held.add(seat.known)

    @property
    def least(self) -> int:
        """Fewest of the requests of the last decision for which it stands."""
        return ceil(SAME_SHARE * len(self.held))

    def decide(self, prices: StepPrices) -> None:
        """Choose a way for every request, as if there were no instant drafts."""
        exploring = self.decider.explores(prices.step(0))
        menus = [seat.menu(self.costs.reading_seconds, hopeful=exploring) for seat in self.seats]
        remaining = [seat.work.running.request.remaining for seat in self.seats]
        decision = self.decider.decide(menus, remaining, prices, exploring=exploring)
        self.values, self.experiment = decision.values, decision.experiment
        for seat, plan, menu in zip(self.seats, decision.chosen, menus, strict=True):
            seat.take(plan, menu, self.values)
        known = {seat.known for seat in self.seats}
        if known.isdisjoint(self.held):
            self.decider.renew()
        beginning = sum(seat.begins for seat in self.seats)
        self.held, self.held_steps = known, 0
        self.hold_steps = hold_for(len(known), prices.step(0)) if outlasts(beginning, len(known)) else 0

    def final(self) -> list[Plan]:
        """What was decided, but for instant drafts worth more, and the experiment if its time has come."""
        plans = self.best_together(self.prices)
        if self.experiment is not None:
            offered = any(plans[i].place in self.seats[i].offers for i in self.experiment.plans)
            self.experiment = self.decider.timely(self.experiment, plans, self.values, offered=offered)
        return plans if self.experiment is None else self.experiment.applied(plans)

    def best_together(self, prices: StepPrices) -> list[Plan]:
        """What was decided, but for instant drafts worth more. A call of a drafter takes hardly less where fewer share
        it: so who has an instant draft goes without the call where most others do, and with it where they do not."""
        if not any(seat.offers for seat in self.seats):
            return [seat.known.base for seat in self.seats]
        apart, called, instant = map(list, zip(*[seat.best(self.values) for seat in self.seats], strict=True))
        if len(apart) == 1 or len({plan.label is None for plan in apart}) == 1:
            return apart
        return soundest([apart, called, instant], prices)

    def place(self, drafts: Sequence[tuple[Seat, DraftTree]], pool: SlotPool) -> None:
        """Give drafts their slots; one larger than expected goes without where it would break the step's limit."""
        placed = sum(len(seat.work.tree) for seat in self.seats)
        for seat, tree in drafts:
            if seat.known.fixed or placed + len(tree) <= self.draft_rows:
                step.place_draft(seat.work, tree, pool)
                placed += len(tree)

    def proposed(self, seats: Sequence[Seat]) -> list[tuple[Seat, DraftTree]]:
        """Drafts by the ways chosen."""
        orders = [(seat.work, seat.work.running.options[seat.place]) for seat in seats]
        return list(zip(seats, step.propose(orders), strict=True))

    def timed(self, seats: Sequence[Seat]) -> list[tuple[Seat, DraftTree]]:
        """As `proposed`, one way after the other, each call's time noted."""
        labels = by_label((seat, seat.place) for seat in seats)
        drafts = []
        for label, orders in labels.items():
            group = [seat for seat, _ in orders]
            for seat in group:
                seat.limit(self.costs, self.values, len(group))
            start = self.clock()
            drafts += self.proposed(group)
            self.saw_draft(label, group, self.clock() - start)
        if len(labels) == 1:
            return drafts
        order = {id(seat): i for i, seat in enumerate(seats)}
        return sorted(drafts, key=lambda pair: order[id(pair[0])])

    def saw_draft(self, label: str, group: Sequence[Seat], seconds: float) -> None:
        """A drafter's first draft for a request reads the whole text so far: that says nothing of the next ones."""
        way = group[0].known.ways[group[0].place]
        owner = way.owner
        self.called += seconds
        self.networked |= not way.instant
        if all(owner in seat.known.called for seat in group):
            self.calls.append(Call(label, [(seat.known, seat.place) for seat in group], seconds))
            return
        surplus = max(0.0, seconds - self.costs.draft_seconds(label, len(group)))
        self.costs.saw_reading(owner, sum(seat.unread(owner) for seat in group), surplus)
        self.surplus += surplus
        for seat in group:
            seat.known.met(owner)
            seat.known.charge(seat.place, seconds / len(group) / self.prices.token)

    def saw_call(self, call: Call, token: float, *, teaches: bool) -> None:
        """Charge a call to those it drafted for, where a token takes so many seconds, and learn what such calls take
        where the step `teaches`."""
        requests = len(call.orders)
        seconds = self.costs.without_stalls(call.label, requests, call.seconds)
        if teaches:
            self.costs.saw_draft(call.label, requests, seconds)
        for known, place in call.orders:
            known.charge(place, seconds / requests / token)

    def learn(
        self,
        batch: list[Work],
        *,
        draft: float,
        rest: float,
    ) -> None:
        """Note what became of a step, which has taken so many seconds of drafting and of everything else."""
        if self.by_routine:
            self.learn_by_routine(batch, draft, rest)
            return
        requests = [work.running.request for work in batch]
        free = [request.statistics for request in requests if request.speculation.adaptive]
        if not free:
            return
        drafted = [seat for seat in self.seats if seat.place != PLAIN and not seat.known.fixed]
        lesson = self.note(drafted, batch, free, draft, rest)
        choosing, kept = [pair for pair in self.deciding if not pair[1].fixed], {id(seat.work) for seat in drafted}
        # Of the others there is nothing to learn: not worth keeping, least of all for a batch of many.
        self.taken.count_works(PLAIN_LABEL, [work for work, _ in choosing if id(work) not in kept], lesson.plain_token)
        for _, known in choosing:
            known.steps += 1
        self.look([pair for pair in choosing if pair[0].watched])
        for work, _ in choosing:
            work.let_go()

    def learn_by_routine(self, batch: list[Work], draft: float, rest: float) -> None:
        """As `learn`, of a step by routine in which nothing but tokens were written."""
        if not self.teaches and (len(batch) > 1 or not self.seats):
            self.routine.seconds += draft + rest
            return
        self.note(self.seats, batch, [work.running.request.statistics for work in batch], draft, rest)
        for seat in self.seats:
            seat.work.let_go()

    def look(self, watched: Sequence[tuple[Work, RequestPolicy]]) -> None:
        """Note how sure the target was of what it has chosen."""
        shares = sureness([work.logits[:1] for work, _ in watched]) if watched else []
        for (_, known), share in zip(watched, shares, strict=True):
            if known.level_after(share) != known.level:
                self.take_in()  # what was noted so far belongs to the level it has left
            known.saw_sureness(share)

    def note(
        self,
        seats: Sequence[Seat],
        batch: list[Work],
        free: list[SpeculationStatistics],
        draft: float,
        rest: float,
    ) -> Lesson:
        """Keep what a step has taught until somebody decides."""
        teaches = self.teaches
        lesson = Lesson(
            seats=seats,
            free=free,
            requests=len(batch),
            rows=len(batch) + sum([len(work.tree) for work in batch]),
            context=mean_context(batch) if teaches else 0.0,
            sampled=sampling(batch) if teaches else False,
            draft=draft,
            rest=rest,
            own=self.beside_calls(draft) if teaches else None,
            steady=all([work.chunk == 1 for work in batch]),
            teaches=teaches,
            calls=self.calls + self.instant.calls,
            surplus=self.surplus,
            values=self.values,
            prices=self.prices,
            experiment=self.experiment,
            accepted=[len(seat.work.path) for seat in self.seats] if self.experiment else [],
            called=self.networked,
            by_routine=self.by_routine,
            stands_for=self.every if self.by_routine and len(batch) > 1 else 1,
        )
        self.lessons.append(lesson)
        if any([seat.work.tree.laws is not None for seat in seats]):
            self.take_in()  # laws are large
        return lesson

    def take_in(self) -> None:
        """Learn all lessons noted."""
        self.settle()
        lessons, self.lessons = self.lessons, []
        for lesson in lessons:
            self.learn_of_step(lesson)
            row, token = lesson.row_price, lesson.plain_token
            for seat in lesson.seats:
                seat.learn(row, teaches=lesson.teaches, stands_for=lesson.stands_for)
                if not lesson.by_routine:
                    self.taken.count_works(seat.known.label(seat.place), [seat.work], token)
        for known in dict.fromkeys(seat.known for lesson in lessons for seat in lesson.seats):
            known.taken_in()

    def learn_of_step(self, lesson: Lesson) -> None:
        """What a step has taken and its experiment has cost."""
        whole, share = lesson.draft + lesson.rest, len(lesson.free) / lesson.requests
        self.decider.exploration.grow(whole * share, self.decider.recent)
        for call in lesson.calls:
            self.saw_call(call, lesson.prices.token / lesson.stands_for, teaches=lesson.teaches)
        if lesson.steady and lesson.own is not None:
            size = (lesson.rows, lesson.requests)
            own = self.costs.own.after(lesson.requests, sort_of(*size, lesson.called), lesson.own)
            seconds = lesson.rest + own
            self.costs.saw_step(*size, lesson.context, lesson.sampled, seconds, called=lesson.called)
        if lesson.experiment is not None:
            lost = lesson.experiment.lost(lesson.accepted, lesson.values.rate, lesson.surplus)
            self.decider.exploration.book(lost)
        if not lesson.steady:  # prompts are read alike with and without drafts
            for statistics in lesson.free:
                self.taken.note_plain(statistics, whole / lesson.requests)

    def beside_calls(self, draft: float) -> float | None:
        """Seconds of `draft` that no drafter's call took; none where the step was decided about: so is the forward that
        follows slower than others of its size, since a decision reads what the caches held."""
        return max(0.0, draft - self.called - self.instant.seconds) if self.held_steps else None

    @property
    def teaches(self) -> bool:
        """Whether costs and stated chances are learned from this step: every other one will do, beside others fewer."""
        return self.held_steps % self.every == 0

    @property
    def every(self) -> int:
        """Steps of which one is learned from in full."""
        return TEACHES[crowd_class(len(self.held))]

    def report(self) -> dict[str, Any]:
        """Choices by way, the estimated speed-up over plain decoding, and what exploration has cost."""
        exploration = self.decider.exploration
        return {
            "choices": dict(self.taken.choices),
            "speed_up": self.taken.plain_seconds / exploration.busy if exploration.busy else None,
            "exploration_share": exploration.share,
            "experiments": exploration.tries,
        }
