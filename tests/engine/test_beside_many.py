"""How the policy goes about many requests: it looks at little, decides seldom, and asks all of them or none."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.drafters.growth import Growth
from foredraft.engine.policy.acceptance import Past
from foredraft.engine.policy.allocation import NOTHING, Plan, Values
from foredraft.engine.policy.decision import VAIN, Decider, StepPrices
from foredraft.engine.policy.holding import WORTH_DECIDING, waits
from foredraft.engine.policy.instant_drafts import InstantDrafts
from foredraft.engine.policy.live_costs import DRAFTED, LiveCosts
from foredraft.engine.policy.policy import Policy
from foredraft.engine.policy.request_policy import MARGIN_ASKED, UNASKED, RequestPolicy, drafted
from foredraft.engine.policy.routine import Routine
from foredraft.engine.policy.seat import Seat
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.engine.way import Way

SUFFIX = Way("suffix 16", "suffix", "suffix", 16, 16, instant=True, stops=True)
LOOKUP = Way("lookup 4", "lookup", "lookup", 4, 4, instant=True)
MODEL = Way("model 4", "model", "model", 4, 4, stops=True)
ALONE, FEW, MANY = range(3)  # classes of how many requests there are


def costs() -> LiveCosts:
    """A plain step of many takes a second, a call of the model a tenth, one for suffix drafts a hundredth."""
    drafts = {MODEL.label: (DraftCost(requests=1, seconds=0.1),), SUFFIX.label: (DraftCost(requests=1, seconds=0.01),)}
    return LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts=drafts))


def seat(crowd: int = MANY, *, past: Past | None = None, chunk: int = 1, remaining: int = 20) -> Seat:
    known = RequestPolicy([MODEL, SUFFIX, LOOKUP], past or Past(), 0, crowd)
    request = SimpleNamespace(remaining=remaining, tokens=[1] * 10)
    work = SimpleNamespace(running=SimpleNamespace(request=request), chunk=chunk, growth=None)
    return Seat(work, known, remaining - 1, step=5)


def values(seats: list[Seat]) -> Values:
    live = costs()
    live.light[SUFFIX.label] = True
    prices = StepPrices(live, requests=len(seats), context=0.0, sampled=False)
    return Values([NOTHING] * len(seats), len(seats) / 1.0, prices)


def test_beside_many_those_that_trim_themselves_are_neither_looked_at_nor_weighed():
    known = RequestPolicy([MODEL, SUFFIX, LOOKUP], Past(), 0, ALONE)
    assert (known.slow, known.instant, known.asked_by_all) == ([0], [1, 2], [])
    known.move(FEW)
    assert (known.slow, known.instant, known.asked_by_all) == ([0], [1, 2], [])
    known.move(MANY)
    assert (known.slow, known.instant, known.asked_by_all) == ([0], [2], [1])


def test_all_are_asked_where_that_has_been_worth_its_time_and_none_where_it_was_not():
    past = Past()
    seats = [seat(past=past) for _ in range(8)]
    assert {its.at_least_asking(NOTHING, values(seats)) for its in seats} == {NOTHING}  # nobody knows
    assert seats[0].known.asked_worth(1, UNASKED) > seats[0].known.asking_price(1, values(seats))
    seats[0].known.saw_asked(1, 1.0, times=100)
    found = [its.at_least_asking(NOTHING, values(seats)) for its in seats]
    assert {plan.label for plan in found} == {SUFFIX.label}
    better = Plan(MODEL.label, 9.0, 9.0, 1, 0)
    assert seats[0].at_least_asking(better, values(seats)) is better
    assert seat(chunk=3, past=past).at_least_asking(NOTHING, values(seats)) is NOTHING  # the end of a prompt
    for its in seats:
        its.known.saw_asked(1, -0.5, times=100)
    assert {its.at_least_asking(NOTHING, values(seats)) for its in seats} == {NOTHING}


def test_hope_of_what_is_not_asked_comes_back():
    past = Past()
    known = seat(past=past).known
    known.saw_asked(1, -0.1, times=1000)
    low = known.asked_worth(1, UNASKED)
    known.leaves(1, 800)
    assert low < 0.0 < known.asked_worth(1, UNASKED) < UNASKED
    assert known.asked_worth(1) < 0.0  # it is to be tried, and not taken for known


def test_what_asking_has_brought_is_learned_from_what_was_accepted():
    one = seat()
    one.place = 1
    one.work.tree = DraftTree(tokens=[1, 2], parents=[-1, 0], drafters=["suffix"] * 2, chances=[0.9, 0.8])
    one.work.path = [0, 1]
    one.learn(0.25, teaches=True, stands_for=12)
    assert UNASKED < one.known.asked_worth(1, UNASKED) < 1.5  # two tokens for rows worth half a token
    assert one.known.rows[1] == 2
    assert one.known.saved[SUFFIX.owner] == pytest.approx(12 * 1.5)
    one.work.path = []
    one.learn(0.25, teaches=True, stands_for=9999)
    assert one.known.asked_worth(1) == pytest.approx(-0.5, abs=0.01)
    one.work.path = [0, 1]
    one.learn(0.25, teaches=True, stands_for=9999, counted=True)
    assert one.known.asked_worth(1) == pytest.approx(-0.5, abs=0.01)


def test_a_chain_that_ended_by_itself_was_not_refused():
    """What lies behind it counts as tokens behind others do; beside many it was cut, and the next one will be."""
    outcomes = {}
    for crowd, nodes, accepted in ((ALONE, 2, 2), (ALONE, 2, 1), (ALONE, 0, 0), (FEW, 2, 2), (FEW, 2, 1), (MANY, 2, 2)):
        own, heard = seat(crowd), []
        own.known.ways = [replace(MODEL, stepwise=True), SUFFIX, LOOKUP]
        own.work.tree, own.work.path, own.place = DraftTree.chain([1] * nodes, "model"), list(range(accepted)), 0
        own.known.learn = lambda *given, heard=heard: heard.append(given)
        own.learn_of_draft()
        outcomes[crowd, nodes, accepted] = heard[0][-1]
    assert outcomes.pop((ALONE, 2, 2)) == outcomes.pop((FEW, 2, 2)) == own.known.onward(0) > 0.0
    assert set(outcomes.values()) == {0.0}


def test_a_lone_chain_that_ends_itself_brings_what_drafts_as_long_bring():
    own = seat(ALONE)
    own.known.ways = [replace(MODEL, stepwise=True), SUFFIX, LOOKUP]
    whole = own.known.plan(0, 4)
    own.known.learn_rows(0, 2)
    usual, (_, one, two, *_) = own.known.plan(0, 4), own.known.depths[MODEL.kind].expected
    assert (whole.rows, usual.rows) == (4, 2) and usual.gain == two < whole.gain
    assert one < own.known.depths[MODEL.kind].expected_at(1.5) < two


def test_asking_costs_the_tokens_that_are_written_meanwhile():
    seats = [seat(FEW) for _ in range(4)]
    asked = {}
    for speed_up in (1.0, 2.0):
        known, instant = values(seats), InstantDrafts()
        known.rate *= speed_up
        instant.settle(seats, known.prices, known)
        asked[speed_up] = instant.prices
    assert asked[2.0] == {label: pytest.approx(2 * price) for label, price in asked[1.0].items()}


def test_one_step_says_little_of_what_asking_is_worth():
    """Most bring nothing and some bring much, so a step of many says little, also where it stands for others."""
    known = seat(past=Past()).known
    for _ in range(1000):
        known.saw_asked(1, 0.2, times=8)
    before = known.asked_worth(1)
    for _ in range(16):
        known.saw_asked(1, -0.4, times=8)
    assert before == pytest.approx(0.2, abs=0.01)
    assert 0.0 < known.asked_worth(1) < before


def test_to_be_asked_a_way_has_to_be_worth_more_than_its_call():
    past = Past()
    seats = [seat(past=past) for _ in range(8)]
    share = values(seats).share(SUFFIX.label, 8)
    seats[0].known.saw_asked(1, share + MARGIN_ASKED / 2, times=9999)
    assert seats[0].at_least_asking(NOTHING, values(seats)) is NOTHING
    seats[0].known.saw_asked(1, share + 2 * MARGIN_ASKED, times=9999)
    assert seats[0].at_least_asking(NOTHING, values(seats)).label == SUFFIX.label


def test_a_plan_brings_no_more_than_its_usual_nodes():
    known = seat(FEW).known
    known.rows[0] = 0.25
    assert known.plan(0, 4).gain == 0.25 and known.plan(0, 4).rows == 0


def test_several_wait_for_those_at_the_ends_of_their_prompts_and_for_the_end():
    def pairs(*seats: Seat) -> list:
        return [(its.work, its.known) for its in seats]

    assert not waits(pairs(seat(chunk=5)))  # alone there may be an instant draft
    assert waits(pairs(seat(), seat(), seat(chunk=5)))
    assert not waits(pairs(*[seat() for _ in range(8)], seat(chunk=5)))
    last = [seat(remaining=WORTH_DECIDING - 1) for _ in range(2)]
    assert waits(pairs(*last)) and not waits(pairs(*last, seat()))
    fixed = seat(chunk=5)
    fixed.known.fixed = True
    assert not waits(pairs(seat(), fixed))  # it is drafted for whatever others do


def test_who_comes_takes_part_in_the_last_decision():
    policy = Policy(draft_rows=64)
    policy.costs, seats = costs(), [seat(FEW) for _ in range(4)]
    policy.standing.values, policy.seats = values(seats), seats
    policy.standing.held = {its.known for its in seats[:3]}
    seats[3].known.depths["model"].learn(4, 4, 1)
    policy.standing.admit(policy.seats, policy.costs.reading_seconds)
    assert seats[3].known.base.label == MODEL.label and seats[3].known in policy.standing.held
    assert seats[0].known.base is NOTHING  # it was decided about


def test_after_many_decisions_to_draft_nothing_the_next_one_is_for_anybody():
    decider = Decider()
    found = [decider.in_vain(MANY, {1: drafts}) for drafts in [False] * VAIN + [True, False]]
    assert found == [*range(1, VAIN + 1), 0, 1]
    decider.renew()  # whoever comes
    assert decider.in_vain(MANY, {1: False}) == 2
    assert not any(decider.in_vain(ALONE, {1: False}) for _ in range(2 * VAIN))


def test_what_many_could_not_use_says_nothing_of_those_of_another_temperature():
    decider = Decider()
    for _ in range(VAIN):
        decider.in_vain(MANY, {1: False})
    assert decider.hopeless(MANY) == {1} and not decider.hopeless(FEW)
    assert decider.in_vain(MANY, {0: True, 1: False}) == 0 and decider.hopeless(MANY) == {1}
    assert decider.in_vain(MANY, {0: False, 1: False}) == 1
    for _ in range(VAIN - 1):
        decider.in_vain(MANY, {0: False})  # by chance no other is there
    assert decider.hopeless(MANY) == {0, 1}
    decider.in_vain(MANY, {1: True})
    assert decider.hopeless(MANY) == {0}


def test_requests_are_drafted_for_by_temperature():
    known = [seat().known for _ in range(3)]
    assert drafted(known) == {0: False}
    known[0].standing = [1]
    assert drafted(known) == {0: True}
    known[0].temperature_class = 1
    assert drafted(known) == {0: False, 1: True}


def test_what_a_step_takes_longer_after_a_networks_call_is_a_cost_of_the_call():
    live = costs()
    live.light[SUFFIX.label] = True
    for _ in range(200):
        live.saw_step(4, 4, 0, False, 1.0)
        live.saw_step(16, 4, 0, False, 1.2)
        live.saw_step(16, 4, 0, False, 1.6, called=True)
    prices = StepPrices(live, requests=4, context=0.0, sampled=False)
    assert prices.step(12) == pytest.approx(1.2, rel=0.05) and prices.step(0) == pytest.approx(1.0, rel=0.05)
    assert prices.draft(MODEL.label, 4) == pytest.approx(live.draft_seconds(MODEL.label, 4) + 0.35, abs=0.05)
    assert prices.draft(SUFFIX.label, 4) == live.draft_seconds(SUFFIX.label, 4)
    other = StepPrices(live, requests=1, context=0.0, sampled=False)
    assert other.aftermath == 0.0  # nobody has seen one of its size


def test_steps_after_a_call_say_what_others_take_that_nobody_has_seen():
    """What was measured at the start may be wrong by as much for all: a busy machine measures itself as slow."""
    live = costs()
    for _ in range(100):
        live.saw_step(16, 4, 0, False, 0.5, called=True)
    prices = StepPrices(live, requests=4, context=0.0, sampled=False)
    assert prices.step(12) == pytest.approx(0.5, rel=0.1) and prices.step(0) == pytest.approx(0.5, rel=0.1)
    assert abs(prices.aftermath) < 0.05


def test_steps_after_a_call_cost_what_they_were_seen_to_where_others_of_their_size_were_not():
    """Of other numbers of requests all steps with drafts took long."""
    live = costs()
    for _ in range(100):
        live.saw_step(4, 4, 0, False, 1.0)
        live.saw_step(8, 1, 0, False, 2.0)
        live.saw_step(16, 4, 0, False, 1.1, called=True)
    prices = StepPrices(live, requests=4, context=0.0, sampled=False)
    assert prices.draft(MODEL.label, 4) < live.draft_seconds(MODEL.label, 4)
    assert 1.1 <= prices.step(12) + prices.draft(MODEL.label, 4) < 1.3


def test_no_call_comes_to_less_than_half_of_what_it_takes():
    """Steps after it may take less than others are believed to: still the slower of two drafters is the dearer."""
    live = costs()
    for _ in range(100):
        live.saw_step(16, 4, 0, False, 3.0)
        live.saw_step(16, 4, 0, False, 1.0, called=True)
    prices = StepPrices(live, requests=4, context=0.0, sampled=False)
    assert prices.aftermath < -1.0
    assert prices.draft(MODEL.label, 4) == pytest.approx(live.draft_seconds(MODEL.label, 4) / 2)


def test_a_size_met_while_the_machine_was_busy_is_no_leap_between_its_neighbours():
    live = costs()
    for rows in (1, 2, 4, 5, 6, 1, 2, 4, 5, 6):
        for _ in range(10):
            live.saw_step(rows, 1, 0, False, 1.0)
    for _ in range(2):
        live.saw_step(3, 1, 0, False, 1.5)
    line = dict(live.line_of((1, False, DRAFTED)))
    assert live.cells[1, False, DRAFTED][3].factor > 1.3 and 1.0 < line[3] < 1.15


def test_steps_after_a_decision_say_nothing_of_costs(monkeypatch: pytest.MonkeyPatch):
    policy, seen = Policy(draft_rows=8), []
    policy.costs = costs()
    monkeypatch.setattr(LiveCosts, "saw_step", lambda self, *size, **named: seen.append(size))
    table = [0] * 9
    request = SimpleNamespace(statistics=None)
    running = SimpleNamespace(table=table, request=request, sampler=SimpleNamespace(plain_greedy=True))
    work = SimpleNamespace(running=running, tree=DraftTree(), chunk=1, verdict=Verdict([], 1))
    policy.standing = policy.standings[FEW]
    policy.standing.prices, policy.standing.held = values([seat(), seat()]).prices, {1, 2}
    for policy.standing.steps in range(9):
        lesson = policy.note([], [work] * 2, [request.statistics] * 2, 0.1, 1.0)
        policy.learn_of_step(lesson)
    assert len(seen) == 2  # the fourth and the eighth after it


def test_what_was_decided_about_many_outlasts_steps_of_a_few():
    """Requests that begin and end together pass by all numbers."""
    policy = Policy(draft_rows=8)
    many, few = policy.standings[MANY], policy.standings[FEW]
    many.routine = Routine({}, 1, MANY, {}, 8, calls=False, others=frozenset({0}))
    policy.turn_to(few)
    policy.standing.leave_routine([])
    policy.turn_to(many)
    assert policy.standing is many and many.routine is not None
    assert (few.steps, many.steps) == (1, 1)


def test_a_growth_says_what_a_path_must_be_worth_to_a_drafter_that_trims_itself():
    assert Growth().least == 0.0
    assert Growth(1.0, row=0.3).least == pytest.approx(0.3)
    modest = Growth(0.5, row=0.3)
    assert modest.least == pytest.approx(0.09)
