"""The speculation policy at work: asks drafters, chooses, and learns from what became of it."""

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

from foredraft.core.draft_tree import NO_DRAFT, DraftTree
from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.request import Request
from foredraft.engine import step
from foredraft.engine.policy.allocation import PLAIN, Plan
from foredraft.engine.policy.cutting import Cutting
from foredraft.engine.policy.decision import VAIN, Decider, Experiment, StepPrices, within
from foredraft.engine.policy.experience import Experience
from foredraft.engine.policy.holding import hold_for, outlasts, patience, waits
from foredraft.engine.policy.instant_drafts import InstantDrafts, by_label
from foredraft.engine.policy.lesson import Call, Lesson, mean_context, prices_of, sampling
from foredraft.engine.policy.live_costs import LiveCosts, sort_of
from foredraft.engine.policy.looks import Heard, Look, callers, let_grow, look_at, note_calls, verified
from foredraft.engine.policy.request_policy import RequestPolicy, drafted
from foredraft.engine.policy.routine import Pair, Routine, orders_at, routine_of, seats_at
from foredraft.engine.policy.seat import (
    CROWD_EDGES,
    Seat,
    best_together,
    crowd_class,
    depth_of,
    place_drafts,
    temperature_class,
)
from foredraft.engine.policy.shortlist import Shortlists
from foredraft.engine.policy.standing import Standing
from foredraft.engine.policy.ways_taken import PLAIN_LABEL, WaysTaken
from foredraft.engine.running import Option, Running, Work
from foredraft.model.slot_pool import SlotPool


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
        beside: Those for whom the way decided drafts although an instant one was asked first.
        looks, heard_of: Instant drafts of the step by routine, and those of the last ones.
        standings: The last decision about so many requests, by class.
        standing: That of the current step.
        experiment: What the current step tries.
        by_routine: Whether the current step goes by routine, and nothing else is in it.
        noted, heard: Whether all is learned of that step, or at least what became of its drafts; of a request alone,
            whom nobody else's teach anything, in any.
        instant: Asks for drafts that are looked at before anything is decided.
        called, surplus, networked: Seconds of this step's calls of drafters that are not instant, how many of these
            first drafts took beyond what was expected, and whether a network was read.
        calls, lessons: This step's calls but those first ones, and what the steps since the last decision have taught.
        clock: Tells what calls of drafters take.
    """

    def __init__(self, *, draft_rows: int, clock: Callable[[], float] = perf_counter) -> None:
        self.draft_rows, self.clock = draft_rows, clock
        self.requests: dict[int, RequestPolicy] = {}
        self.experience, self.decider = Experience(), Decider()
        self.shortlists, self.taken = Shortlists(), WaysTaken()
        self.costs: LiveCosts | None = None
        self.deciding: list[Pair] = []
        self.beside, self.looks, self.heard_of = list[Pair](), list[Look](), Heard()
        self.seats: list[Seat] = []
        self.standings = tuple([Standing(crowd) for crowd in range(len(CROWD_EDGES) + 1)])
        self.standing = self.standings[0]
        self.experiment: Experiment | None = None
        self.by_routine = self.noted = self.heard = self.networked = False
        self.instant, self.called, self.surplus = InstantDrafts(clock), 0.0, 0.0
        self.calls: list[Call] = []
        self.lessons: list[Lesson] = []

    def open(self, running: Running, requests: int = 1) -> None:
        """Begin to know a request, which is likely to be served beside others, `requests` in all."""
        request, fixed = running.request, not running.request.speculation.adaptive
        assert fixed or self.costs is not None
        ways, past = [option.way for option in running.options], self.experience.past
        for way in [way for way in ways if way.instant] if self.costs is not None else ():
            self.costs.light[way.label] = True
        kind = (temperature_class(request), crowd_class(requests))
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
        its = self.requests[request.id]
        its.called.clear()
        its.growth.clear()

    def draft(self, batch: list[Work], pool: SlotPool) -> None:
        """Give every deciding request its draft for this step, with cache slots for the nodes."""
        self.forget_step()
        self.deciding = [(work, self.requests[work.running.request.id]) for work in batch if work.decides]
        crowd, rows = crowd_class(len(batch)), sum([work.chunk for work in batch])
        self.turn_to(self.standings[crowd])
        if self.goes_by_routine(crowd):
            self.go_on(pool, steady=rows == len(self.deciding))
            return
        self.settle()
        self.standing.leave_routine(self.deciding)
        if all([its.fixed for _, its in self.deciding]):
            self.draft_fixed(pool)
            return
        known = [its for _, its in self.deciding]
        held = self.standing.holds(known)
        self.standing.prices = prices_of(batch, self.costs, self.standing.prices if held else None)
        self.enter(self.deciding, crowd)
        if not held and waits(self.deciding):
            return
        self.seats = [Seat(work, its, depth_of(work), step=its.steps) for work, its in self.deciding]
        if held or self.opens(self.standing.prices):
            self.choose(self.standing.prices, held, pool)
            vain = 0 if held else self.decider.in_vain(crowd, drafted(known))
            self.standing.most *= 2 ** patience(vain)
            limits = {"least": self.standing.least, "room": self.draft_rows}
            others = self.decider.hopeless(crowd) if vain >= VAIN else frozenset()
            self.standing.go_on_by(routine_of(self.seats, crowd, self.instant.prices, others=others, **limits))

    def turn_to(self, standing: Standing) -> None:
        """The step goes by this decision."""
        if standing is not self.standing:
            self.settle()
            self.standing = standing
        standing.steps += 1
        standing.since_tried += 1

    def goes_by_routine(self, crowd: int) -> bool:
        """Whether the step takes no thought; who has come since its decision may join."""
        routine = self.standing.routine
        if routine is None or not self.standing.lasts or not routine.suits(self.deciding, crowd):
            return False
        fresh = routine.strangers(self.deciding)
        if fresh:
            self.enter(fresh, crowd)
        return all([routine.takes(work, its) for work, its in fresh])

    def draft_fixed(self, pool: SlotPool) -> None:
        """Draft where nothing is left to choose."""
        step.draft([(work, work.running.options[0]) for work, _ in self.deciding], pool)
        self.deciding = []
        self.standing.drop()

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

    def go_on(self, pool: SlotPool, *, steady: bool) -> None:
        """Draft by routine; a step in which prompts are read, too, is not `steady`, and is counted apart."""
        routine, self.by_routine = self.standing.routine, steady
        if self.standing.turns:
            self.settle()
            self.standing.turn(self.deciding)
        if not (steady and routine.counts(self.deciding)):
            self.settle()
        if steady:
            routine.open(self.deciding)
        self.noted = not steady or self.standing.teaches
        self.heard = self.noted or len(self.deciding) == 1
        if not (routine.drafts or routine.tried):
            return
        if routine.weighs:
            self.weigh_alone(routine, pool)
            return
        if routine.firsts:
            self.look_first(routine, pool)
            return
        orders = None if self.noted else orders_at(routine.drafted, self.deciding)
        if self.heard:
            self.seats = seats_at(routine.drafted, self.deciding)
        if orders is not None:
            step.draft(orders, pool)
            return
        for seat, tree in self.timed(self.seats or seats_at(routine.drafted, self.deciding)):
            step.place_draft(seat.work, tree, pool)

    def look_first(self, routine: Routine, pool: SlotPool) -> None:
        """Ask instant ways first, call those drafters whose drafts pay beside these, and verify what does together."""
        firsts, drafts, values = routine.firsts, self.drafts_by(routine.firsts), self.standing.values
        self.looks = looks = [look_at(pair, firsts, drafts, self.costs, values.pace) for pair in self.deciding]
        calling, called = callers(looks, values) if routine.calls else {}, {}
        note_calls(looks, calling, values.pace)
        if calling:
            let_grow(looks, calling, values)
            self.beside, drafts = [pair for pair in self.deciding if pair[1] in calling], self.drafts_by(calling)
            called = {its: drafts.get(id(work), NO_DRAFT) for work, its in self.beside}
        for (work, its), tree in zip(self.deciding, verified(looks, called, values), strict=True):
            place = calling.get(its, firsts.get(its)) if tree else PLAIN
            step.place_draft(work, tree, pool)
            if place != routine.places.get(its, PLAIN):
                routine.taken[its, place] += 1
            if tree and self.heard:
                self.seats.append(Seat(work, its, depth_of(work), place, its.steps, told=its not in calling))

    def weigh_alone(self, routine: Routine, pool: SlotPool) -> None:
        """Draft for the only request by the way decided, or by an instant one whose draft is worth more, and leave out
        what does not pay."""
        [(work, its)] = self.deciding
        seat, fresh = Seat(work, its, depth_of(work), step=its.steps), []
        self.instant.ask_again([seat], self.standing.prices, None)
        self.looks = [Look(work, its, place, offer.tree, offer.rates) for place, offer in seat.offers.items()]
        seat.place = seat.best(self.standing.values)[0].place
        if seat.place == PLAIN:
            return
        self.seats, seat.told = [seat], seat.place in seat.offers
        if seat.place == its.base.place:
            fresh = [(seat, self.drafts_by(routine.places)[id(work)])]
        else:
            routine.taken[its, seat.place] += 1
        self.place_all(fresh, Cutting(self.seats, self.standing.prices, self.draft_rows), pool)

    def drafts_by(self, places: Mapping[RequestPolicy, int]) -> dict[int, DraftTree]:
        """Drafts of those who have a way there, by id of work, timed only where something is learned of the step or
        has to be worked out before."""
        orders = None if self.noted else orders_at(places, self.deciding)
        if orders is None:
            return {id(seat.work): tree for seat, tree in self.timed(seats_at(places, self.deciding))}
        return {id(work): tree for (work, _), tree in zip(orders, step.propose(orders), strict=True)}

    def settle(self) -> None:
        """Count what was written in steps by routine."""
        routine = self.standing.routine
        if routine is None:
            return
        self.decider.exploration.grow(routine.seconds, self.decider.recent)
        node_tokens = routine.node_tokens(self.standing.prices)
        for account in self.standing.closed():
            its, place, steps = account.known, account.place, account.steps
            its.steps += steps
            its.saw_steps(place, steps, account.tokens - steps - node_tokens * account.nodes)
            self.taken.count(its.label(place), account.statistics, steps, self.standing.values.token * account.tokens)

    def forget_step(self) -> None:
        """What the step before has left belongs to its own lesson."""
        self.deciding, self.seats, self.beside, self.looks, self.experiment = [], [], [], [], None
        self.called, self.surplus, self.calls, self.by_routine, self.networked = 0.0, 0.0, [], False, False
        self.instant.seconds, self.instant.calls = 0.0, []

    def enter(self, deciding: Sequence[Pair], crowd: int) -> None:
        """These are served as one of so many, by class."""
        for _, known in deciding:
            if known.crowd != crowd:
                self.take_in()  # what was noted so far belongs to the class it has left
                known.move(crowd)

    def choose(self, prices: StepPrices, held: bool, pool: SlotPool) -> None:
        """Decide, or where the last decision is `held` to look at instant drafts only, ask for the other drafts, and
        leave out what does not pay."""
        if held:
            self.standing.admit(self.seats, self.costs.reading_seconds)
            self.instant.ask_again(self.seats, prices, self.row_price)
            if not any(seat.offers or seat.known.base.place != PLAIN for seat in self.seats):
                return
            plans = best_together(self.seats, self.standing.values, prices)
        else:
            self.decide(prices)
            self.instant.settle(self.seats, prices, self.standing.values)
            plans = self.final()
        plans, cutting = within(plans, self.room), Cutting(self.seats, prices, self.draft_rows)
        if self.experiment is None:
            plans = cutting.instant(plans)
        if not held:
            self.decider.note(plans, prices)
        for seat, plan in zip(self.seats, plans, strict=True):
            seat.place = plan.place
        calling = [seat for seat in self.seats if seat.place != PLAIN and seat.place not in seat.offers]
        self.place_all(self.timed(calling) if calling else [], cutting, pool)

    @property
    def row_price(self) -> float | None:
        """Tokens that a row costs by the last decision; none for a request alone, whose rows are priced exactly."""
        return None if len(self.seats) == 1 else self.standing.values.row_price if self.standing.values else 0.0

    @property
    def room(self) -> int:
        """Draft nodes left for requests that leave a choice."""
        return self.draft_rows - sum(seat.known.ways[0].nodes for seat in self.seats if seat.known.fixed)

    def place_all(self, fresh: Sequence[tuple[Seat, DraftTree]], cutting: Cutting, pool: SlotPool) -> None:
        """Leave out what does not pay, of `fresh` drafts and of those that were there before, and give everybody's
        nodes their slots."""
        whole = cutting.fresh(fresh, self.standing.values.rate, self.decider.exploration) if fresh else []
        taken = [(seat, seat.offers[seat.place].kept) for seat in self.seats if seat.place in seat.offers]
        place_drafts(whole + taken, self.seats, self.draft_rows, pool)

    def decide(self, prices: StepPrices) -> None:
        """Choose a way for every request, as if there were no instant drafts."""
        exploring = self.decider.explores(prices.step(0))
        reading, called = self.costs.reading_seconds, self.standing.pace.called
        menus = [seat.menu(reading, called, hopeful=exploring) for seat in self.seats]
        remaining = [seat.work.running.request.remaining for seat in self.seats]
        decision = self.decider.decide(menus, remaining, prices, exploring=exploring)
        self.experiment = decision.experiment
        for seat, plan, menu in zip(self.seats, decision.chosen, menus, strict=True):
            seat.take(plan, menu, decision.values)
        known = {seat.known for seat in self.seats}
        if known.isdisjoint(self.standing.held):
            self.decider.renew()
        beginning = sum(seat.begins for seat in self.seats)
        calls = decision.values.calls.items()
        untried = any([label is not None and not self.costs.has_seen(label, count) for label, count in calls])
        most = hold_for(len(known), prices.step(0), untried=untried) if outlasts(beginning, len(known)) else 0
        self.standing.renew(known, decision.values, most)

    def final(self) -> list[Plan]:
        """What was decided, but for instant drafts worth more, and the experiment if its time has come."""
        plans = best_together(self.seats, self.standing.values, self.standing.prices)
        if self.experiment is not None:
            offered = any(plans[i].place in self.seats[i].offers for i in self.experiment.plans)
            self.experiment = self.decider.timely(self.experiment, plans, self.standing.values, offered=offered)
        return plans if self.experiment is None else self.experiment.applied(plans)

    def timed(self, seats: Sequence[Seat]) -> list[tuple[Seat, DraftTree]]:
        """Drafts by the ways chosen, one way after the other, each call's time noted."""
        labels = by_label((seat, seat.place) for seat in seats)
        drafts = []
        for label, orders in labels.items():
            group = [seat for seat, _ in orders]
            for seat in group:
                seat.limit(self.costs, self.standing.values, len(group), len(self.deciding))
            start = self.clock()
            trees = step.propose([(seat.work, seat.work.running.options[seat.place]) for seat in group])
            self.saw_draft(label, group, self.clock() - start, max([max(tree.depths, default=0) for tree in trees]))
            drafts += zip(group, trees, strict=True)
        if len(labels) == 1:
            return drafts
        order = {id(seat): i for i, seat in enumerate(seats)}
        return sorted(drafts, key=lambda pair: order[id(pair[0])])

    def saw_draft(self, label: str, group: Sequence[Seat], seconds: float, depth: int) -> None:
        """A call took so many seconds for drafts as deep as `depth`. A drafter's first draft for a request reads the
        whole text so far: that says nothing of the next ones."""
        way = group[0].known.ways[group[0].place]
        owner = way.owner
        self.called += seconds
        self.networked |= not way.instant
        if all(owner in seat.known.called for seat in group):
            self.calls.append(Call(label, [(seat.known, seat.place) for seat in group], seconds, depth))
            return
        surplus = max(0.0, seconds - self.costs.draft_seconds(label, len(group)))
        self.costs.saw_reading(owner, sum(seat.unread(owner) for seat in group), surplus)
        self.surplus += surplus
        for seat in group:
            seat.known.met(owner)
            seat.known.charge(seat.place, seconds / len(group) / self.standing.prices.token)

    def saw_call(self, call: Call, token: float, *, teaches: bool) -> None:
        """Charge a call to those it drafted for, where a token takes so many seconds, and learn what such calls take
        where the step `teaches`."""
        requests = len(call.orders)
        seconds = self.costs.without_stalls(call.label, requests, call.seconds)
        if teaches:
            known, place = call.orders[0]
            way = known.ways[place]
            share = self.costs.share(way, *known.lengths[way.kind], requests, call.depth)
            self.costs.saw_draft(call.label, requests, seconds, share)
        for known, place in call.orders:
            known.charge(place, seconds / requests / token)

    def learn(self, batch: list[Work], *, draft: float, rest: float) -> None:
        """Note what became of a step, which has taken so many seconds of drafting and of everything else."""
        if self.by_routine:
            self.learn_by_routine(batch, draft, rest)
            return
        free = [its.statistics for work in batch if (its := work.running.request).speculation.adaptive]
        if not free:
            return
        drafted = [seat for seat in self.seats if seat.place != PLAIN and not seat.known.fixed]
        lesson = self.note(drafted, batch, free, draft, rest)
        choosing, kept = [pair for pair in self.deciding if not pair[1].fixed], {id(seat.work) for seat in drafted}
        # Of the others there is nothing to learn: not worth keeping, least of all for a batch of many.
        self.taken.count_works(PLAIN_LABEL, [work for work, _ in choosing if id(work) not in kept], lesson.plain_token)
        for work, known in choosing:
            known.steps += 1
            work.let_go()

    def learn_by_routine(self, batch: list[Work], draft: float, rest: float) -> None:
        """As `learn`, of a step by routine in which nothing but tokens were written."""
        self.standing.routine.note(batch)
        for work, its in self.beside:
            its.saw_further(len(work.tree), len(work.path))
        self.heard_of.note(self.looks)
        if not self.noted:
            self.standing.routine.passed(draft + rest)
            for seat in self.seats:
                seat.hear()
            return
        self.note(self.seats, batch, [work.running.request.statistics for work in batch], draft, rest)
        for seat in self.seats:
            seat.work.let_go()

    def note(
        self, seats: Sequence[Seat], batch: list[Work], free: list[SpeculationStatistics], draft: float, rest: float
    ) -> Lesson:
        """Keep what a step has taught until somebody decides."""
        teaches = self.standing.teaches
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
            values=self.standing.values,
            prices=self.standing.prices,
            experiment=self.experiment,
            accepted=[len(seat.work.path) for seat in self.seats] if self.experiment else [],
            called=self.networked,
            by_routine=self.by_routine,
            stands_for=self.standing.every if self.by_routine else 1,
        )
        self.lessons.append(lesson)
        if any([seat.work.tree.laws is not None for seat in seats]):
            self.take_in()  # laws are large
        return lesson

    def take_in(self) -> None:
        """Learn all lessons noted."""
        self.settle()
        self.heard_of.take_in()
        lessons, self.lessons = self.lessons, []
        for lesson in lessons:
            self.learn_of_step(lesson)
            row, token = lesson.row_price, lesson.plain_token
            for seat in lesson.seats:
                seat.learn(row, teaches=lesson.teaches, stands_for=lesson.stands_for, counted=lesson.counted)
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
        return max(0.0, draft - self.called - self.instant.seconds) if self.standing.steps else None

    def report(self) -> dict[str, Any]:
        """Choices by way, the estimated speed-up over plain decoding, and what exploration has cost."""
        return self.taken.report(self.decider.exploration)
