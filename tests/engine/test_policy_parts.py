"""The policy's parts by hand-made examples."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine.policy.acceptance import (
    CHANCE_CENTRES,
    GUESS,
    KIN,
    MOST,
    UNSEEN,
    ChanceAcceptance,
    DepthAcceptance,
    Past,
)
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Allocation, Plan, Values, allocate, rate_of, step_seconds
from foredraft.engine.policy.cutting import Cutting, cut
from foredraft.engine.policy.decision import PATIENCE, Decider, Experiment, StepPrices, within
from foredraft.engine.policy.exploration import FIRST_STEPS, LEAST_SHARE, Exploration
from foredraft.engine.policy.holding import (
    DOUBLINGS,
    HOLD_IDLE,
    HOLD_MORE,
    HOLD_MOST,
    HOLD_MOST_BESIDE,
    HOLD_STEPS,
    HOLD_UNTRIED,
    HOLD_WEIGHED,
    MANY,
    hold_for,
    outlasts,
    patience,
)
from foredraft.engine.policy.lesson import prices_of
from foredraft.engine.policy.live_costs import LiveCosts, along, rough_costs, size_class
from foredraft.engine.policy.policy import Policy
from foredraft.engine.policy.request_policy import ASK_LAST, RequestPolicy
from foredraft.engine.policy.routine import Routine
from foredraft.engine.policy.seat import CUTTING, Offer, Seat, best_together
from foredraft.engine.policy.shortlist import shortlist
from foredraft.engine.policy.standing import Standing
from foredraft.engine.policy.trimming import best_nodes, worthwhile
from foredraft.engine.policy.usefulness import FIRST_BESIDE, Usefulness
from foredraft.engine.running import Option
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.engine.way import Way


class Prices:
    """A step costs `base` up to `flat` rows and 0.1 for each further one; a call 0.5 and 0.05 a request."""

    def __init__(self, flat: int, base: float = 1.0):
        self.flat, self.base = flat, base

    def step(self, draft_rows: float) -> float:
        return self.base + 0.1 * max(0, draft_rows - self.flat)

    def about(self, draft_rows: float) -> float:
        return self.step(draft_rows)

    def more(self, first: int, last: int, *, called: bool) -> float:
        return self.step(last) - self.step(first)

    def draft(self, label: str, requests: int) -> float:
        return 0.5 + 0.05 * requests

    @property
    def token(self) -> float:
        return self.step(0) / 2


def test_alone_the_plan_of_the_highest_rate_is_chosen():
    menu = [NOTHING, Plan("a", 1.0, 1.0, 4, 0), Plan("b", 0.4, 0.4, 2, 1), Plan(None, 0.7, 0.7, 3, 2)]
    allocation = allocate([menu], Prices(flat=4))
    assert allocation.chosen == [menu[3]]  # 1.7 in 1, against 2 in 1.55
    assert allocation.rate == pytest.approx(1.7)


def test_a_call_shared_by_many_pays_where_it_does_not_for_one():
    menu = [NOTHING, Plan("a", 0.5, 0.5, 1, 0)]
    assert allocate([menu], Prices(flat=100)).chosen == [NOTHING]  # 1.5 in 1.55
    assert allocate([menu] * 4, Prices(flat=100, base=4)).chosen == [menu[1]] * 4  # 6 in 4.7 against 4 in 4


def test_beside_others_drafts_that_hardly_pay_are_not_made():
    menus = [[[NOTHING, Plan("a", gain, gain, 1, 0)] for _ in range(4)] for gain in (0.2, 0.3)]
    prices = Prices(flat=100, base=4)  # a call for four is 0.7, in which 0.7 tokens would be written without it
    assert [allocate(menu, prices).chosen[0].gain for menu in menus] == [0.0, 0.3]


def test_requests_choose_differently_in_one_step():
    poor, good = Plan("a", 0.05, 0.05, 3, 0), Plan("a", 2.5, 2.5, 3, 0)
    chosen = allocate([[NOTHING, poor], [NOTHING, good], [NOTHING, poor]], Prices(flat=1)).chosen
    assert chosen == [NOTHING, good, NOTHING]


def test_allocation_is_never_worse_than_nobody_drafting():
    menus = [[NOTHING, Plan("a", 0.2, 0.2, 7, 0), Plan("b", 0.3, 0.3, 5, 1)]] * 5
    prices = Prices(flat=0)
    assert rate_of(allocate(menus, prices).chosen, prices) >= rate_of([NOTHING] * 5, prices)


def test_a_request_without_a_choice_keeps_its_plan():
    fixed = Plan("a", 0.1, 0.1, 9, 0)
    assert allocate([[fixed], [NOTHING]], Prices(flat=0)).chosen == [fixed, NOTHING]


def test_another_row_costs_what_steps_get_longer_by():
    assert Values([NOTHING], 2.0, Prices(flat=100)).another_row(3.0, 1) == 0.0
    assert Values([NOTHING], 2.0, Prices(flat=0)).another_row(3.0, 1) == pytest.approx(2.0 * 0.1)
    several = Values([NOTHING] * 8, 2.0, Prices(flat=0))
    assert several.another_row(3.0, 8) == pytest.approx(2.0 * 0.1)
    assert several.another_row(3.0, 2) == pytest.approx(0.5 * 0.1)  # the other six have ended: a second brings fewer


def test_what_steps_cost_with_drafts_that_grow_together_never_falls():
    class Uneven(Prices):
        def step(self, draft_rows: int) -> float:
            return [1.0, 1.2, 1.1, 1.5, 1.4][min(draft_rows, 4)]

    there, made = (Plan(label, 1.0, 1.0, 2, 0) for label in (None, "a"))
    values = Values([made, NOTHING, NOTHING, NOTHING], 2.0, Uneven(flat=0))
    assert values.steps_with("a", 3, 4) == pytest.approx([0.0, 0.4, 0.4, 1.0])
    assert values.steps_with("a", 3, 2) == pytest.approx([0.0, 0.2, 0.2, 0.5])  # two have ended: a second brings less
    beside = Values([made, there, NOTHING, NOTHING], 2.0, Uneven(flat=0))
    assert beside.steps_with("a", 2, 4) == pytest.approx([0.0, 0.8, 0.8])


def test_a_first_reading_is_paid_for_over_the_steps_that_remain():
    """It lets a draft of little gain go that would pay otherwise, near a text's end above all."""
    prices, toll = Prices(flat=100), 1.5
    plain, free = NOTHING, Plan("a", 2.0, 2.0, 2, 0)
    assert allocate([[plain, free]], prices).chosen == [free]
    assert allocate([[plain, free._replace(toll=toll)]], prices).chosen == [plain]
    assert allocate([[plain, free]] * 2, prices).chosen == [free] * 2
    assert allocate([[plain, free._replace(toll=toll)]] * 2, prices).chosen == [plain] * 2
    values = Values([plain] * 2, 2.0, prices)
    assert values.of(free) - values.of(free._replace(toll=toll)) == pytest.approx(2.0 * toll)


def test_an_experiment_is_to_afford_first_readings_whole():
    """Four texts are read for it at once, and perhaps never drafted for again."""
    prices, best = Prices(flat=100), Allocation([NOTHING] * 4, 4.0)
    decider, plan = Decider(Exploration(allowed=10.0)), Plan("a", 0.0, 2.0, 2, 0, reading=5.0, toll=0.1)
    everybody, one = ({place: plan for place in range(count)} for count in (4, 1))
    assert decider.affordable(everybody, best, prices) is None and decider.affordable(one, best, prices) is not None
    known = {place: plan._replace(reading=0.0, toll=0.0) for place in range(4)}
    assert decider.affordable(known, best, prices) is not None


def test_an_experiment_waits_for_a_step_without_instant_drafts_but_not_for_ever():
    """A drafter that always has a draft would else keep all others from being tried."""
    chosen, plan = [Plan(None, 0.5, 0.5, 1, 1)], Plan("a", 0.2, 2.0, 2, 0)
    values = Values(chosen, 1.5, Prices(flat=100))
    decider, experiment = Decider(Exploration(allowed=10.0)), Experiment({0: plan}, seconds=0.55, forgone=0.0)
    assert decider.timely(experiment, chosen, values, offered=False) is experiment
    waits = [decider.timely(experiment, chosen, values, offered=True) for _ in range(PATIENCE)]
    assert waits == [None] * PATIENCE
    tried = decider.timely(experiment, chosen, values, offered=True)
    assert tried.plans == experiment.plans and tried.forgone == 0.5  # what the instant draft would have brought
    assert decider.timely(experiment, chosen, values, offered=True) is None


def test_an_experiment_that_cannot_be_better_than_the_instant_draft_is_not_made():
    chosen, plan = [Plan(None, 1.8, 1.8, 1, 1)], Plan("a", 0.2, 2.0, 2, 0)
    values = Values(chosen, 2.8, Prices(flat=100))
    decider, experiment = Decider(Exploration(allowed=10.0)), Experiment({0: plan}, seconds=0.55, forgone=0.0)
    assert [decider.timely(experiment, chosen, values, offered=True) for _ in range(3 * PATIENCE)] == [None] * 12


def test_beside_others_a_plan_has_the_rows_and_the_gain_that_usually_stay():
    way, past = Way("w", "w", "w", 4, 16), Past()
    crowded = seat_after_cut(RequestPolicy([way], past, 0, crowd=1))
    alone = seat_after_cut(RequestPolicy([way], past, 0, crowd=0))
    assert (crowded.usual_rows(0), alone.usual_rows(0)) == (1, 4)
    assert crowded.plan(0, 4).gain < alone.plan(0, 4).gain  # alone, the next draft may go on where this one was cut
    others = [RequestPolicy([way], past, 0, crowd).usual_rows(0) for crowd in (1, 2, 0)]
    assert others == [1, 16, 16]


def seat_after_cut(known: RequestPolicy) -> RequestPolicy:
    """A request whose draft of four nodes was cut to its first one, which was accepted, in each of ten steps."""
    for _ in range(10):
        offer = Offer(tree(), [0.8, 0.2, 0.7, 0.2], [0])
        work = SimpleNamespace(tree=offer.kept, path=[0])
        Seat(work=work, known=known, depth=4, offers={0: offer}, place=0, step=known.steps).learn(0.0, teaches=False)
        known.steps += 1
    known.taken_in()
    return known


def test_a_drafter_reads_a_text_once():
    known = RequestPolicy([Way("a", "a", "a", 4, 4)], Past(), 0)
    request = SimpleNamespace(tokens=[1] * 20, remaining=10)
    seat = Seat(work=SimpleNamespace(running=SimpleNamespace(request=request), chunk=1), known=known, depth=4)
    plain, plan = seat.menu(lambda owner, positions: 0.01 * positions)
    assert plain.toll == 0.0 and plan.toll == pytest.approx(CUTTING + 0.2 * (1.0 + plan.gain) / 10)
    known.base = plan
    known.met("a")
    assert known.base.toll == 0.0
    assert [its.toll for its in seat.menu(lambda owner, positions: 0.01 * positions)] == [0.0, CUTTING]


def test_what_a_first_reading_takes_is_learned():
    costs = LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts={}))
    assert costs.reading_seconds("a", 100) == 0.0
    costs.saw_reading("b", 50, 0.0)  # once it took no longer than any other call
    costs.saw_reading("b", 50, 1.0)
    assert costs.reading_seconds("b", 50) > 0.0
    costs.saw_reading("a", 50, 1.0)
    assert costs.reading_seconds("a", 100) == pytest.approx(2.0)
    costs.saw_reading("a", 50, 1000.0)  # a disturbance
    assert costs.reading_seconds("a", 100) < 3.0


def test_calls_that_nobody_makes_get_no_dearer_by_a_slow_start():
    """Costs measured while the machine was busy would keep a drafter out for ever."""
    forwards = (ForwardCost(rows=1, requests=1, context=0, seconds=1.0),)
    costs = LiveCosts(StepCosts(forwards=forwards, drafts={"a": (DraftCost(requests=1, seconds=0.8),)}))
    assert costs.draft_seconds("a", 1) == pytest.approx(0.8)
    for _ in range(60):
        costs.saw_step(1, 1, 0, False, 0.5)
    assert costs.draft_seconds("a", 1) == pytest.approx(0.4, rel=0.1)
    for _ in range(200):
        costs.saw_step(1, 1, 0, False, 3.0)
    assert costs.draft_seconds("a", 1) == pytest.approx(0.8)  # what steps take beyond forwards is not drafting


def test_calls_for_more_requests_are_guessed_to_grow_as_forwards_do():
    forwards = [
        ForwardCost(rows=n, requests=n, context=0, seconds=seconds) for n, seconds in ((1, 1.0), (4, 1.2), (16, 2.0))
    ]
    table = StepCosts(forwards=tuple(forwards), drafts={"a": (DraftCost(requests=1, seconds=0.5),)})
    assert table.draft_seconds("a", 4) == pytest.approx(0.6) and table.draft_seconds("a", 16) == pytest.approx(1.0)
    measured = (DraftCost(requests=1, seconds=0.5), DraftCost(requests=4, seconds=0.9))
    more = StepCosts(forwards=tuple(forwards), drafts={"a": measured})
    assert more.draft_seconds("a", 4) == 0.9 and more.draft_seconds("a", 16) > 1.0


def test_another_token_of_a_call_costs_what_chains_of_two_lengths_differ_by():
    drafts = {label: (DraftCost(requests=1, seconds=seconds),) for label, seconds in (("a 2", 0.5), ("a 7", 0.75))}
    costs = LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts=drafts))
    short, long = Way("a 2", "a", "a", 2, 2), Way("a 7", "a", "a", 7, 7)
    assert costs.another_token(short, short, long, 1) == pytest.approx(0.05)
    assert costs.another_token(long, long, long, 1) == pytest.approx(0.75 / 8)  # its part of the call
    for _ in range(50):
        costs.saw_draft("a 2", 1, 1.0)
    assert costs.another_token(short, short, long, 1) == pytest.approx(0.1, rel=0.05)  # such calls take twice as long
    assert costs.another_token(long, short, long, 1) == pytest.approx(0.05)


def test_a_draft_that_ends_early_makes_no_token_cheaper():
    drafts = {label: (DraftCost(requests=1, seconds=seconds),) for label, seconds in (("a 2", 0.5), ("a 7", 0.75))}
    costs = LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts=drafts))
    short, long = (Way(f"a {depth}", "a", "a", depth, depth, stops=True, stepwise=True) for depth in (2, 7))
    assert [costs.share(long, short, long, 1, depth) * 0.75 for depth in (7, 3, 0)] == pytest.approx([0.75, 0.55, 0.45])
    for _ in range(50):
        costs.saw_draft("a 7", 1, 1.1, costs.share(long, short, long, 1, 3))
    assert costs.draft_seconds("a 7", 1) == pytest.approx(1.1, rel=0.02)  # what such calls take
    assert costs.another_token(long, short, long, 1) == pytest.approx(0.1, rel=0.02)  # twice as long as measured
    assert costs.draft_seconds("a 7", 4) < 0.75  # for others they will end early, too
    at_once = Way("m", "m", "m", 7, 7)
    assert costs.share(at_once, at_once, at_once, 1, 1) == 1.0  # its network runs but once


def test_another_row_behind_a_network_is_priced_by_steps_that_followed_one():
    forwards = [ForwardCost(rows=rows, requests=4, context=0, seconds=1.0 + rows / 100) for rows in (4, 24)]
    live = LiveCosts(StepCosts(forwards=tuple(forwards), drafts={}))
    for _ in range(200):
        for rows in (4, 8, 16, 20):
            live.saw_step(rows, 4, 0, False, 1.0 + rows / 100, called=False)
            live.saw_step(rows, 4, 0, False, 1.2 + rows / 20, called=True)
    prices = StepPrices(live, requests=4, context=0.0, sampled=False)
    assert prices.more(4, 12, called=True) == pytest.approx(8 / 20, rel=0.15)
    assert prices.more(4, 12, called=False) == pytest.approx(8 / 100, rel=0.3)


def test_a_step_whose_drafts_are_still_to_be_made_is_a_mixture_of_those_that_are_cheap_for_their_size():
    forwards = [ForwardCost(rows=rows, requests=4, context=0, seconds=1.0 + rows // 9) for rows in range(4, 37)]
    prices = StepPrices(LiveCosts(StepCosts(forwards=tuple(forwards), drafts={})), 4, 0.0, False)
    assert [prices.step(rows) for rows in (0, 4, 5, 13, 14)] == [1.0, 1.0, 2.0, 2.0, 3.0]
    assert [prices.about(rows) for rows in (0, 4, 13)] == pytest.approx([1.0, 1.0, 2.0])
    assert [prices.about(rows) for rows in (5, 7, 9)] == pytest.approx([1 + 1 / 9, 1 + 3 / 9, 1 + 5 / 9])
    assert prices.about(100) <= prices.step(100)  # further than the line was drawn at first


def test_a_draft_to_be_made_is_weighed_by_what_such_steps_take_on_average():
    """Twelve rows on average cost a whole block if all steps are of that size, which none is."""
    forwards = [ForwardCost(rows=rows, requests=4, context=0, seconds=1.0 + rows // 9) for rows in range(4, 37)]
    prices = StepPrices(LiveCosts(StepCosts(forwards=tuple(forwards), drafts={})), 4, 0.0, False)
    there, made = (Plan(label, 0.5, 0.5, 2, 0) for label in (None, "a"))
    waiting = prices.draft("a", 4)
    assert step_seconds([there] * 4, prices) == 2.0
    assert step_seconds([made] * 4, prices) == pytest.approx(1 + 4 / 9 + waiting)


def test_the_steps_limit_takes_drafts_from_those_who_gain_least():
    big, small = Plan("a", 3.0, 3.0, 6, 0), Plan("a", 0.5, 0.5, 4, 0)
    assert within([big, small], room=10) == [big, small]
    assert within([big, small], room=9) == [big, NOTHING]
    assert within([big, small], room=0) == [NOTHING, NOTHING]
    fixed = small._replace(fixed=True)
    assert within([big, fixed], room=6) == [big, fixed] and within([big, fixed], room=5) == [NOTHING, fixed]


def tree() -> DraftTree:
    """A root with children 0 and 1; node 2 below 0, node 3 below 2."""
    return DraftTree(tokens=[5, 6, 7, 8], parents=[-1, -1, 0, 2], drafters=["d"] * 4, chances=[0.8, 0.2, 0.5, 0.5])


PATHS = [0.8, 0.2, 0.4, 0.2]  # its nodes' chances together with all their ancestors'


def test_paths_are_as_likely_as_all_of_their_nodes_together():
    known, unlike = ChanceAcceptance(Past(), ("kind",)), len(CHANCE_CENTRES) * [0.9]
    assert known.path_rates(tree()) == pytest.approx(PATHS)  # as stated
    known.known = [[*unlike[:1], 1.0, *unlike[2:5], 0.5, *unlike[6:]], [*unlike[:3], 0.8, *unlike[4:]]]
    assert known.path_rates(tree()) == pytest.approx([0.4, 0.2, 0.16, 0.064])
    known.known = [[2.0] * len(CHANCE_CENTRES), [2.0] * len(CHANCE_CENTRES)]
    assert known.path_rates(tree()) == pytest.approx([MOST, 0.4, MOST**2, MOST**3])


def test_nodes_that_pay_are_closed_under_parents():
    rates = PATHS
    assert worthwhile(rates, row_price=0.3) == [0, 2]
    assert worthwhile(rates, row_price=0.9) == []
    assert worthwhile(rates, row_price=0.0) == [0, 1, 2, 3]


def test_the_best_number_of_nodes_for_a_request_alone():
    rates = PATHS
    assert best_nodes(rates, lambda rows: 1 + 0.3 * rows) == [0]  # 1.8 in 1.3, then 2.2 in 1.6
    assert best_nodes(rates, lambda rows: 1 + 0.2 * rows) == [0, 2]
    assert best_nodes(rates, lambda rows: 1.0) == [0, 1, 2, 3]
    assert best_nodes(rates, lambda rows: 1.0 + rows) == []
    assert best_nodes([0.5] * 6, lambda rows: 1.0 if rows <= 3 else 9.0) == [0, 1, 2]  # of equals the first


def test_rows_of_all_drafts_are_paid_together():
    sure, unsure = Offer(tree(), [0.9, 0.5, 0.8, 0.3], [0, 1, 2, 3]), Offer(tree(), [0.4, 0.2, 0.1, 0.1], [0])
    cut([sure, unsure], lambda rows: 1.0 if rows <= 3 else 9.0, sure=2.0)
    assert (sure.nodes, unsure.nodes) == ([0, 1, 2], [])
    assert sure.gain == pytest.approx(2.2) and sure.kept.tokens == [5, 6, 7] and unsure.plan(3).rows == 0
    cut([sure, unsure], lambda rows: 1.0, sure=2.0)
    assert (sure.nodes, unsure.nodes) == ([0, 1, 2, 3], [0, 1, 2, 3]) and sure.kept is sure.tree


def test_acceptance_by_depth_learns_and_counts_only_what_was_tried():
    known = DepthAcceptance(Past(), (0, 0, "kind"), 3)
    before = known.expected[3]
    for turn in range(30):
        known.learn(3, 1, turn)  # the first is accepted, the second never, the third is never tried
    known.take_in()
    first, second, third = known.own
    assert first.hits == first.tries > 5 and second.hits == 0 and second.tries > 5 and third.tries == 0
    assert known.expected[1] > 0.85 and known.expected[3] < before
    assert known.expected == sorted(known.expected)


def test_outcomes_taken_in_together_say_what_they_say_one_by_one():
    together, apart = (DepthAcceptance(Past(), (0, 0, "kind"), 3) for _ in range(2))
    for step, accepted, further in ((0, 3, 0.0), (1, 0, 0.4), (5, 2, 0.9), (6, 1, 0.0), (20, 3, 0.0)):
        for known in (together, apart):
            known.learn(3, accepted, step, further)
        apart.take_in()
    assert together.expected == pytest.approx(apart.expected, rel=1e-12)
    for ones, others in ((together.own, apart.own), (together.usual, apart.usual)):
        assert [its.hits for its in ones] == pytest.approx([its.hits for its in others], rel=1e-12)
        assert [its.tries for its in ones] == pytest.approx([its.tries for its in others], rel=1e-12)


def learned(past: Past, *outcomes: int, kind: str = "chain") -> DepthAcceptance:
    """What a request knows after drafts of four tokens of which so many were accepted."""
    own = DepthAcceptance(past, (0, 0, kind), 4)
    for step, accepted in enumerate(outcomes):
        own.learn(4, accepted, step)
    return own


def test_what_is_hard_for_one_kind_of_a_drafters_drafts_is_so_for_the_others():
    ways = [
        Way("chain", "chain", "model", 4, 4),
        Way("tree", "tree", "model", 4, 16),
        Way("heads", "heads", "heads", 4, 4),
    ]
    for accepted, harder in ((0, True), (4, False)):
        past = Past()
        for kind in ("chain", "tree", "heads"):
            learned(past, *[4, 1] * 60, kind=kind).take_in()
        known = RequestPolicy(ways, past, 0)
        usual = {kind: its.expected[4] for kind, its in known.depths.items()}
        for step in range(10):
            known.learn(0, DraftTree.chain([1, 2, 3, 4], "model"), list(range(accepted)), 4, step)
        known.taken_in()
        assert (known.depths["tree"].expected[4] < usual["tree"]) is harder
        assert known.depths["heads"].expected[4] == usual["heads"]


def test_a_draft_goes_on_as_those_of_its_kind_have_gone_on():
    past, chain = Past(), DraftTree(tokens=[1, 2, 3], parents=[-1, 0, 1], drafters=["d"] * 3, chances=[0.5] * 3)
    known = ChanceAcceptance(past, ("kind",))
    assert known.onward == pytest.approx(UNSEEN)
    for _ in range(60):
        known.learn(chain, [0, 1])  # two were accepted, one was not
    assert known.onward == pytest.approx(2 / 3, abs=0.05)
    for _ in range(60):
        known.learn(chain, [0, 1, 2])  # where it ended nobody knows how it goes on
    assert known.onward > 0.9
    assert ChanceAcceptance(past, ("kind",)).onward == pytest.approx(known.going_on.past.mean(UNSEEN, GUESS), abs=0.01)


@pytest.mark.parametrize("crowd", [0, 1])
def test_nobody_needs_a_short_draft_of_what_stops_by_itself(crowd):
    kinds = {"a": {"stops": True}, "b": {}, "c": {"stops": True, "samples": True}}  # what is drawn does not stop
    ways = [Way(f"{kind} {depth}", kind, kind, depth, depth, **kinds[kind]) for kind in kinds for depth in (4, 7)]
    known = RequestPolicy(ways, Past(), 0, crowd)
    assert sorted({plan.place for plan in known.menu(7)} - {PLAIN}) == [1, 2, 3, 4, 5]


def test_what_is_not_tried_is_trusted_less_and_hoped_for_more():
    known = DepthAcceptance(Past(), (0, 0, "kind"), 3)
    for turn in range(20):
        known.learn(3, 0, turn)
    soon, later = known.hoped(3, 21), known.hoped(3, 80)
    known.let_fade(80)
    assert known.expected[3] < soon < later and known.own[0].tries < 4


def test_another_request_starts_from_the_past_of_its_kind_only():
    past = Past()
    unknown = DepthAcceptance(past, (2, 0, "a"), 2).expected[2]
    known = DepthAcceptance(past, (0, 0, "a"), 2)
    for turn in range(50):
        known.learn(2, 2, turn)
    known.take_in()
    own = DepthAcceptance(past, (0, 0, "a"), 2).expected[2]
    assert own > 1.5 and DepthAcceptance(past, (2, 0, "a"), 2).expected[2] == unknown
    assert DepthAcceptance(past, (0, 0, "b"), 2).expected[2] == unknown


def test_a_kind_that_is_new_starts_with_a_little_of_the_nearest_ones():
    past = Past()
    known = DepthAcceptance(past, (0, 0, "a"), 2)
    unknown = known.expected[2]
    for turn in range(50):
        known.learn(2, 2, turn)
    known.take_in()
    warmer, more = (DepthAcceptance(past, (*kind, "a"), 2) for kind in ((1, 0), (0, 1)))
    own = DepthAcceptance(past, (0, 0, "a"), 2).expected[2]
    assert unknown < warmer.expected[2] < own and unknown < more.expected[2] < own
    assert past.tally(1, 0, "a", "depth", 0).tries == KIN


def test_what_was_left_out_counts_by_how_likely_it_was():
    learnt = []
    for further in (0.0, 0.5, 0.9):
        known = DepthAcceptance(Past(), (0, 0, "a"), 3)
        for turn in range(20):
            known.learn(3, 1, turn, further)
        learnt.append(known.expected[3])
    assert learnt == sorted(learnt) and learnt[0] < learnt[1] - 0.2 < learnt[2] - 0.4


def test_drafts_of_a_depth_between_two_bring_what_lies_between():
    known = DepthAcceptance(Past(), (0, 0, "a"), 3)
    one, two, three = known.expected[1:]
    assert known.expected_at(1.0) == one and known.expected_at(3.0) == three
    assert known.expected_at(1.25) == pytest.approx(0.75 * one + 0.25 * two)


def test_how_far_a_drafters_chances_may_be_believed():
    def candour(chance: float, hits: int) -> float:
        known = ChanceAcceptance(Past(), ("kind",))
        for place in range(40):
            known.learn(DraftTree.chain([1], "d", chances=[chance]), [0] if place % 4 < hits else [])
        return known.candour

    assert ChanceAcceptance(Past(), ("kind",)).candour == 1.0
    assert candour(0.33, hits=2) < 0.8  # modest: half of them were accepted
    assert candour(0.78, hits=1) > 1.5  # boastful: one in four was


def test_stated_chances_are_corrected_by_what_became_of_them():
    def rate(chance: float, depth: int = 1) -> float:
        *above, whole = [1.0, *known.path_rates(DraftTree.chain([1] * depth, "d", chances=[chance] * depth))]
        return whole / above[-1]

    known = ChanceAcceptance(Past(), ("kind",))
    assert rate(0.9) > 0.8 > 0.2 > rate(0.05)
    for _ in range(40):
        known.learn(DraftTree.chain([1], "d", chances=[0.9]), [])
    assert rate(0.9) < 0.2 and rate(0.9, depth=2) > 0.5 and rate(0.3) > 0.2


def test_what_a_text_says_of_some_chances_it_says_of_all():
    past = Past()
    usual, harder = ChanceAcceptance(past, ("kind",)), ChanceAcceptance(past, ("kind",))
    for place in range(80):
        usual.learn(DraftTree.chain([1], "d", chances=[0.5]), [0] if place % 2 else [])
    for _ in range(8):
        harder.learn(DraftTree.chain([1], "d", chances=[0.5]), [])
    other, below = DraftTree.chain([1], "d", chances=[0.9]), DraftTree.chain([1, 2], "d", chances=[0.9, 0.9])
    assert harder.path_rates(other)[0] < 0.8 < usual.path_rates(other)[0]
    first, second = harder.path_rates(below)
    assert second / first == pytest.approx(0.9)  # deeper ones were not reached


def test_every_node_whose_parent_was_accepted_teaches_its_chance():
    way = Way("w", "w", "w", 3, 4)
    known = RequestPolicy([way], Past(), 0)
    known.check(0, tree(), path=[0])
    first, later = known.chances["w"].levels
    told = [{level: (its.hits, its.tries) for level, its in enumerate(part) if its.tries} for part in (first, later)]
    # 0.8 was hit, 0.2 missed, below the hit 0.5 missed; the last was not tried
    assert told == [{1: (0.0, 0.2), 5: (1.0, 0.8)}, {3: (0.0, 0.5)}]


def test_what_was_written_teaches_of_nodes_that_were_not_verified():
    draft = DraftTree.chain([1, 2, 3], "s", chances=[0.5, 0.6, 0.8])

    def tried(written: list[int]) -> list[tuple[float, float]]:
        known = RequestPolicy([Way("s", "s", "s", 3, 3, instant=True)], Past(), 0)
        known.check_by(0, draft, written)
        return [(its.hits, its.tries) for part in known.chances["s"].levels for its in part if its.tries]

    assert tried([9]) == [(0.0, 0.5)]
    assert tried([1, 9]) == [(1.0, 0.5), (0.0, 0.6)]
    assert tried([1, 2]) == [(1.0, 0.5), (1.0, 0.6)]  # what follows is not known yet
    assert tried([1, 2, 3, 9]) == [(1.0, 0.5), (1.0, 0.6), (1.0, 0.8)]


def test_an_instant_way_that_brings_nothing_is_asked_seldom():
    known = RequestPolicy([Way("s", "s", "s", 3, 3, instant=True)], Past(), 0)
    asked = []
    for step in range(100):
        if known.asks(0, price=0.05):
            asked.append(step)
            known.saw_worth(0, 0.0, 0.0)
        known.steps += 1
    assert asked[:15] == list(range(15)) and asked[-1] - asked[-2] == ASK_LAST


def test_menus_are_cut_to_what_the_request_may_still_write():
    known = RequestPolicy([Way("w", "w", "w", 7, 7), Way("s", "s", "s", 9, 9, instant=True)], Past(), 0)
    plain, full = known.menu(20)
    assert plain == NOTHING and full.place == 0
    assert known.menu(1)[1].gain < full.gain


def test_exploration_stops_at_its_share_and_is_refunded_by_gains():
    books = Exploration()
    books.grow(100.0, speed_up=1.0)
    assert books.affords(LEAST_SHARE * 100, 0.1)
    books.book(LEAST_SHARE * 100 + FIRST_STEPS * 0.1)
    assert not books.affords(0.1, 0.1) and books.share > 0
    books.book(-1.0)
    assert books.affords(0.1, 0.1)


def test_prompts_that_are_read_beside_change_no_price():
    """A decision stands for the steps after, in most of which none are read."""
    sampler = SimpleNamespace(plain_greedy=True)

    def work(chunk: int) -> SimpleNamespace:
        return SimpleNamespace(chunk=chunk, running=SimpleNamespace(table=[1] * 5, sampler=sampler))

    forwards = [ForwardCost(rows=rows, requests=2, context=0, seconds=rows**1.5) for rows in (2, 100, 200)]
    costs = LiveCosts(StepCosts(forwards=tuple(forwards), drafts={}))
    alone, beside = (prices_of([work(1), work(chunk)], costs, None) for chunk in (1, 98))
    assert [beside.step(nodes) for nodes in range(40)] == [alone.step(nodes) for nodes in range(40)]
    assert alone.step(0) < alone.step(1) and alone.token == alone.step(0) / 2
    assert prices_of([work(9), work(1)], costs, alone) is alone
    assert prices_of([work(1)] * 3, costs, alone) is not alone


def test_costs_follow_what_steps_take():
    table = StepCosts(
        forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),),
        drafts={"d": (DraftCost(requests=1, seconds=0.5),)},
    )
    costs = LiveCosts(table)
    for _ in range(60):
        costs.saw_step(1, 1, 0, False, 2.0)
        costs.saw_draft("d", 1, 0.25)
    assert costs.step_seconds(1, 1, 0, False) == pytest.approx(2.0, rel=0.1)
    assert costs.step_seconds(8, 1, 0, False) == pytest.approx(2.0, rel=0.1)  # never seen: as all steps are off
    assert costs.step_seconds(1, 1, 0, True) == 1.0  # sampling is a matter of its own
    assert costs.draft_seconds("d", 1) == pytest.approx(0.25, rel=0.1)
    costs.saw_step(1, 1, 0, False, 1000.0)  # a disturbance
    assert costs.step_seconds(1, 1, 0, False) < 3.0
    assert costs.without_stalls("d", 1, 0.5) == 0.5
    assert costs.without_stalls("d", 1, 100.0) == pytest.approx(0.75, rel=0.1)


def test_a_line_through_points_is_level_beyond_its_ends():
    assert along([(2.5, 1.0), (4.0, 4.0), (7.5, 0.5)], 10) == [1.0, 1.0, 1.0, 2.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.5]
    assert along([(0.0, 3.0)], 2) == along([(1.0, 3.0)], 1) == [3.0, 3.0]


@pytest.mark.parametrize("requests", [1, 4])
@pytest.mark.parametrize("called", [False, True])
def test_steps_of_all_sizes_are_priced_as_each_of_them_is(requests, called):
    forwards = [ForwardCost(rows=n, requests=r, context=0, seconds=n**0.5) for r in (1, 4) for n in (4, 8, 32)]
    costs = LiveCosts(StepCosts(forwards=tuple(forwards), drafts={}))
    for place, rows in enumerate([requests, 5, 7, 9, 12, 20, 30, 7, 5, requests] * 4):
        costs.saw_step(rows, requests, 0.0, False, 2.0 + place % 7, called=called and rows > requests)
    for first in (requests, requests + 3):
        sizes = range(first, 51)
        alone = [costs.step_seconds(rows, requests, 0.0, False, called=called) for rows in sizes]
        assert costs.step_line(first, 50, requests, 0.0, False, called=called) == pytest.approx(alone, rel=1e-12)


def test_a_stall_is_not_charged_to_the_drafter_it_met():
    table = StepCosts(
        forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),),
        drafts={"a": (DraftCost(requests=1, seconds=0.1),)},
    )
    policy, known = Policy(draft_rows=8), RequestPolicy([Way("a", "a", "a", 4, 4)], Past(), 0)
    policy.costs = LiveCosts(table)
    policy.standing.prices = StepPrices(policy.costs, requests=1, context=0.0, sampled=False)
    request = SimpleNamespace(tokens=[1] * 20)
    seat = Seat(work=SimpleNamespace(running=SimpleNamespace(request=request)), known=known, depth=4, place=0)
    policy.saw_draft("a", [seat], 2.0, 4)  # the first draft reads the whole text
    assert known.saved["a"] == pytest.approx(-2.0)
    policy.saw_draft("a", [seat], 50.0, 4)
    assert known.saved["a"] == pytest.approx(-2.0)  # charged when the step is learned of
    policy.saw_call(*policy.calls, 1.0, teaches=False)
    assert known.saved["a"] == pytest.approx(-2.3)


def test_plain_steps_get_no_dearer_by_being_rare():
    table = StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts={})
    costs = LiveCosts(table)
    for _ in range(20):
        costs.saw_step(1, 1, 0, False, 1.1)
    for _ in range(300):
        costs.saw_step(9, 1, 0, False, 1.8)  # verifying takes more than its forward
    assert costs.step_seconds(1, 1, 0, False) == pytest.approx(1.1, rel=0.05)
    assert costs.step_seconds(9, 1, 0, False) == pytest.approx(1.8, rel=0.05)
    for _ in range(60):
        costs.saw_step(9, 1, 0, False, 3.6)  # a busy neighbour
    assert costs.step_seconds(1, 1, 0, False) > 1.8


def test_what_the_policy_itself_takes_counts_where_it_is_no_decision_and_no_call():
    policy = Policy(draft_rows=8)
    policy.costs = LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts={}))
    assert policy.beside_calls(1.0) is None  # a decision, which comes once in several steps
    assert policy.costs.own.after(4, True, None) == 0.0
    policy.standing.steps, policy.called, policy.instant.seconds = 1, 0.3, 0.2
    assert policy.beside_calls(1.0) == pytest.approx(0.5)
    assert policy.costs.own.after(4, True, 0.5) == 0.5
    assert policy.costs.own.after(4, False, 0.1) == 0.1  # nothing was drafted: a matter of its own
    assert policy.costs.own.after(4, True, 1000.0) < 1.0  # a disturbance
    assert policy.costs.own.after(4, True, None) == policy.costs.own.of(4, True)  # as held steps usually take
    policy.costs.own.saw(64, True, 0.0)
    policy.costs.own.saw(64, True, 0.5)
    assert policy.costs.own.of(64, True) > 0.0  # nothing once is not nothing for ever


def test_one_of_many_that_begins_is_no_reason_to_decide_again():
    assert outlasts(0, 1) and not outlasts(1, 1) and not outlasts(1, MANY - 1)
    assert outlasts(1, MANY) and not outlasts(2, MANY) and outlasts(8, 64)


def test_where_nothing_is_measured_what_steps_took_stands_in():
    assert rough_costs(SpeculationStatistics(rounds=4, verify_seconds=2.0)).forward_seconds(1, 1, 0) == 0.5
    assert rough_costs(SpeculationStatistics()).forward_seconds(1, 1, 0) > 0


def test_sizes_fall_into_classes_that_grow_with_them():
    classes = [size_class(count) for count in range(1, 200)]
    assert classes == sorted(classes) and len(set(classes)) < 40 and len(set(classes[:8])) == 7 + 1


def option(method: str, *, instant: bool = False, depth: int = 4) -> Option:
    drafter = ScriptedDrafter([], name=method, needs=DrafterNeeds(instant=instant))
    return Option(drafter, SpeculationConfig(method=method, num_speculative_tokens=depth))


def test_drafters_too_dear_to_come_near_the_best_are_not_kept_ready():
    cheap, dear, instant = option("cheap"), option("dear"), option("instant", instant=True)
    table = StepCosts(
        forwards=tuple(ForwardCost(rows=rows, requests=1, context=0, seconds=1 + rows / 50) for rows in (1, 8)),
        drafts={"cheap 4": (DraftCost(requests=1, seconds=0.2),), "dear 4": (DraftCost(requests=1, seconds=1.5),)},
    )
    assert shortlist((instant, cheap, dear), LiveCosts(table)) == (instant, cheap)
    free = replace(table, drafts=table.drafts | {"dear 4": (DraftCost(requests=1, seconds=0.3),)})
    assert shortlist((instant, cheap, dear), LiveCosts(free)) == (instant, cheap, dear)
    assert shortlist((instant,), LiveCosts(table)) == (instant,)


def test_of_lengths_those_stay_that_serve_one_request_well_or_all_of_them():
    short = option("a", depth=2)
    long = replace(short, speculation=replace(short.speculation, num_speculative_tokens=7))
    sizes = ((1, 1.0), (3, 1.0), (8, 1.0), (12, 1.2), (32, 4.0))  # rows are free for one request, and not for four
    table = StepCosts(
        forwards=tuple(
            ForwardCost(rows=rows, requests=requests, context=0, seconds=seconds)
            for requests in (1, 4)
            for rows, seconds in sizes
            if rows >= requests
        ),
        drafts={f"a {depth}": tuple(DraftCost(requests=n, seconds=depth * 0.04) for n in (1, 4)) for depth in (2, 7)},
    )
    assert shortlist((short, long), LiveCosts(table)) == (long,)
    assert shortlist((short, long), LiveCosts(table), 4) == (short, long)


def test_a_drafter_of_no_use_is_kept_ready_ever_more_seldom():
    known, kind, three = Usefulness(), (1, 1), dict.fromkeys(("useful", "useless", "harmful"), True)
    for _ in range(3):
        assert known.kept(kind, three) == {"useful", "useless", "harmful"}
        known.saw(kind, 20, {"useful": 10.0, "useless": 0.2, "harmful": -3.0})
    known.saw(kind, 2, {"useful": -2.0})  # too short to say anything
    assert known.kept(kind, {**three, "new": True}) == {"useful", "new"}
    tried = [place for place in range(2, 800) if known.kept(kind, {"useless": True})]
    assert tried == [16, 48, 112, 240, 496, 752]
    known.saw(kind, 20, {"useless": 8.0})
    assert known.kept(kind, {"useless": True})


def test_one_good_try_brings_back_what_seemed_of_no_use():
    known = Usefulness()
    for _ in range(5):
        known.saw((0, 0), 20, {"stalled": -6.0})
    assert not known.kept((0, 0), {"stalled": True})
    known.saw((0, 0), 20, {"stalled": 8.0})
    assert known.kept((0, 0), {"stalled": True})


def test_what_is_of_no_use_to_some_is_of_none_to_warmer_ones_and_to_more_at_once():
    known = Usefulness()
    for _ in range(3):
        known.saw((1, 1), 20, {"useless": 0.2, "useful": 8.0})
    for kind in ((2, 1), (1, 2), (2, 2)):
        assert known.kept(kind, {"useless": True, "useful": True}) == {"useful"}
    for kind in ((0, 1), (1, 0), (0, 2), (2, 0)):
        assert known.kept(kind, {"useless": True, "useful": True}) == {"useless", "useful"}


def test_a_drafter_that_costs_nothing_until_it_drafts_is_judged_by_each_kind_of_those_beside_others_anew():
    known = Usefulness()
    for _ in range(3):
        known.saw((0, 0), 20, {"free": 0.2, "costly": 0.2})
    assert known.kept((0, 1), {"free": False, "costly": True}, together=4) == {"free"}


def test_a_drafter_that_costs_nothing_until_it_drafts_is_tried_for_longer_beside_others():
    free = {"free": False}
    for kind, patient in (((0, 0), False), ((0, 1), True)):
        known = Usefulness()
        known.kept(kind, free)
        for _ in range(3):
            known.saw(kind, 20, {"free": 0.2})
        assert (known.kept(kind, free) == {"free"}) is patient


def test_beside_others_one_for_whom_nothing_is_kept_ready_is_left_out_only_where_it_has_cost_more_than_it_brought():
    for crowd, saved, kept in ((2, 0.2, True), (2, -0.2, False), (1, -0.2, True), (1, -3.0, False)):
        known, kind = Usefulness(), (0, crowd)  # 0.2 plain steps are a hundredth of the time
        known.kept(kind, {"free": False})
        for _ in range(FIRST_BESIDE):
            known.saw(kind, 20, {"free": saved})
        assert bool(known.kept(kind, {"free": False})) is kept


def test_those_who_try_a_drafter_of_no_use_again_are_served_together():
    for costs, firsts in ((False, (16, 51, 118)), (True, (64, 195))):  # what one keeps ready takes everybody's time
        known, kind = Usefulness(), (0, 1)
        known.kept(kind, {"useless": costs}, together=4)
        for _ in range(FIRST_BESIDE):
            known.saw(kind, 20, {"useless": -3.0})
        tried = [place for place in range(1, 240) if known.kept(kind, {"useless": costs}, together=4)]
        assert tried[: 4 * len(firsts)] == [first + place for first in firsts for place in range(4)]


def test_a_drafter_is_of_use_as_far_as_no_other_does_as_well():
    ways = [Way("a", "a", "a", 4, 4), Way("b", "b", "b", 4, 4)]
    known, plans = RequestPolicy(ways, Past(), 0), [Plan("a", 3.0, 3.0, 0, 0), Plan("b", 2.5, 2.5, 0, 1)]
    known.decided(plans[0], [NOTHING, *plans], Values([plans[0]], 1.0, Prices(flat=8)))
    assert known.forgone(0) == pytest.approx(2.5 - 0.55)  # what b would have brought
    assert known.forgone(1) == pytest.approx(3.0 - 0.55)
    known.decided(NOTHING, [NOTHING], Values([NOTHING], 1.0, Prices(flat=8)))
    assert known.forgone(0) == 0.0


def test_what_a_drafter_saves_is_what_it_brings_less_what_it_costs():
    known = RequestPolicy([Way("a", "a", "a", 4, 4)], Past(), 0)
    known.charge(0, 0.5)  # its time
    known.charge(0, 0.25 - 2)  # its rows, and two accepted tokens
    assert known.saved == {"a": 1.25}


def test_a_drafter_that_learns_from_every_step_needs_a_seat_that_pays():
    policy = Policy(draft_rows=8)
    table = StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts={})
    policy.costs = LiveCosts(table)
    silent = Option(ScriptedDrafter([], name="silent", needs=DrafterNeeds(instant=True, told=False)), OFF)
    needs = DrafterNeeds(instant=True, successors=2)
    told = Option(ScriptedDrafter([], name="told", needs=needs), SpeculationConfig(method="told"))
    free = option("free", instant=True)
    everybody = told, silent, free
    request = Request(prompt=[1], params=SamplingParams(), speculation=SpeculationConfig(), seed=0)
    for _ in range(3):
        assert policy.seated(everybody, request) == everybody
        policy.experience.usefulness.saw((0, 0), 20, {each.way.owner: 0.0 for each in everybody})
    assert policy.seated(everybody, request) == (silent, free)  # to keep the last one ready costs nothing


def seats_with(*offers: Offer) -> list[Seat]:
    """Two seats, the first ones with these offers by way 0."""
    seats = [Seat(work=None, known=None, depth=4) for _ in range(2)]
    for seat, offer in zip(seats, offers, strict=False):
        seat.place, seat.offers = 0, {0: offer}
    return seats


def dear_beyond(free: int, price: float) -> Prices:
    prices = Prices(flat=8)
    prices.step = lambda rows: 1.0 if rows <= free else price
    return prices


def test_instant_drafts_are_cut_together_once_all_are_there():
    offer = Offer(tree(), [0.9, 0.5, 0.8, 0.3], [0, 1, 2, 3])
    cutting = Cutting(seats_with(offer), dear_beyond(0, 3.0), most=64)
    waiting = [offer.plan(0), Plan("a", 1.0, 1.0, 3, 1)]
    assert cutting.instant(waiting) == waiting
    assert cutting.instant([waiting[0], NOTHING]) == [Plan(None, 0, 0, 0, 0), NOTHING]


def test_where_nobodys_drafts_pay_decisions_stand_for_longer():
    assert [patience(vain) for vain in (0, 1, 2, 3, 50)] == [0, 0, 1, DOUBLINGS, DOUBLINGS]


def test_a_step_drafts_no_more_than_it_holds():
    offer = Offer(tree(), [0.9, 0.5, 0.8, 0.3], [0, 1, 2, 3])
    cutting = Cutting(seats_with(offer), Prices(flat=8), most=3)
    assert cutting.instant([offer.plan(0), NOTHING])[0].rows == 3


def test_a_step_of_a_size_that_nobody_has_seen_is_tried_and_paid_for():
    exploration, seen = Exploration(), []
    prices = dear_beyond(3, 30.0)
    prices.known, prices.learned = seen.__contains__, 7

    def rows() -> int:
        offer = Offer(tree(), [0.9, 0.5, 0.8, 0.3], [0, 1, 2, 3])
        before = [(offer.nodes, offer.gain)]
        cutting = Cutting(seats_with(offer), prices, most=64)
        cutting.cut([offer])
        cutting.keep_new([offer], before, 0, 2.0, exploration)
        return len(offer.nodes)

    assert rows() == 3  # the try would cost 29 steps, more than may be spent
    exploration.grant(30.0)
    assert rows() == 4 and exploration.spent == pytest.approx(30.0 - 1.0 - 0.3 / 2.0)
    exploration.grant(100.0)
    assert rows() == 3  # what it took has not been learned yet
    prices.learned += 1
    assert rows() == 4
    prices.learned += 1
    seen.append(4)
    exploration.grant(100.0)
    assert rows() == 3


def test_how_a_cut_draft_might_have_gone_on():
    offer = Offer(tree(), [0.8, 0.2, 0.4, 0.2], [0, 1, 2, 3])
    assert offer.further([0]) == 0.0  # whole
    offer.keep([0])
    assert offer.further([]) == pytest.approx(0.2) and offer.further([0]) == pytest.approx(0.5)
    offer.keep([0, 2])
    assert offer.further([0, 1]) == pytest.approx(0.5) and offer.further([0]) == 0.0


def test_chains_beside_others_are_weighed_whole_and_cut():
    chain, alone = (RequestPolicy([Way("w", "w", "w", 4, 4, stops=True)], Past(), 0, crowd) for crowd in (1, 0))
    _, whole, half = chain.menu(20)
    assert (whole.rows, half.rows) == (4, 2) and half.place == whole.place and half.gain < whole.gain
    assert len(alone.menu(20)) == 2


def seats_between(gain: float, *offered: float) -> list[Seat]:
    """Three seats with a plan of such a gain that shares a call; the first ones have instant drafts of other gains."""
    base = Plan("a", gain, gain, 1, 1)
    seats = [Seat(work=None, known=SimpleNamespace(base=base), depth=4) for _ in range(3)]
    for seat, share in zip(seats, offered, strict=False):
        seat.offers = {0: Offer(DraftTree(tokens=[5], parents=[-1], drafters=["d"]), [share], [0])}
    return seats


@pytest.mark.parametrize(
    ("offered", "labels"),
    [
        ((0.9,), ["a"] * 3),  # one who goes without the call saves hardly anything of it
        ((1.9, 1.9), [None] * 3),  # nor is it worth making for the last one
        ((2.3,), [None, "a", "a"]),  # an instant draft that brings more than the call
        ((), ["a"] * 3),
    ],
)
def test_who_has_an_instant_draft_decides_with_the_others(offered, labels):
    policy, prices = Policy(draft_rows=8), Prices(flat=100)
    policy.seats = seats_between(2.0, *offered)
    bases = [seat.known.base for seat in policy.seats]
    policy.standing.values = Values(bases, rate_of(bases, prices), prices)
    assert [plan.label for plan in best_together(policy.seats, policy.standing.values, prices)] == labels


def test_a_request_without_a_choice_keeps_its_drafter_whatever_the_others_have():
    policy, prices = Policy(draft_rows=8), Prices(flat=100)
    policy.seats = seats_between(2.0, 1.9, 1.9)
    fixed = policy.seats[2].known.base = Plan("b", 0.01, 0.01, 1, 0, fixed=True)
    bases = [seat.known.base for seat in policy.seats]
    policy.standing.values = Values(bases, rate_of(bases, prices), prices)
    assert best_together(policy.seats, policy.standing.values, prices)[2] is fixed
    assert policy.seats[2].best(policy.standing.values) == (fixed, fixed, fixed)


def test_a_decision_stands_for_mostly_the_same_requests():
    beside, alone = Standing(2, held=set(range(8)), most=5), Standing(0, held={1}, most=5)
    assert beside.holds(range(8)) and beside.holds([*range(1, 5), 8, 9])
    assert not beside.holds(range(3)) and not beside.holds(range(5, 13))
    assert alone.holds([1]) and not alone.holds([2])
    beside.steps = alone.steps = 6
    assert not beside.holds(range(8)) and not alone.holds([1])  # not beyond its steps


def test_a_decision_stands_for_longer_where_steps_are_short_and_for_less_where_a_call_is_new():
    short, long = 1e-3, 1.0
    assert hold_for(4, short) == HOLD_MOST_BESIDE and hold_for(4, short, untried=True) == HOLD_UNTRIED
    assert hold_for(1, 1e-6) == hold_for(1, 1e-6, untried=True) == HOLD_MOST
    assert hold_for(4, long) == hold_for(4, long, untried=True) == HOLD_STEPS
    assert hold_for(16, long) == HOLD_MORE and hold_for(16, short) == HOLD_MOST_BESIDE
    live = LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts={}))
    assert not live.has_seen("a", 4)
    live.saw_draft("a", 4, 0.5)
    assert live.has_seen("a", 4) and not live.has_seen("a", 16) and not live.has_seen("b", 4)


def test_a_decision_stands_for_fewer_steps_where_they_take_thought():
    standing = Standing(1, most=HOLD_WEIGHED + 9)
    standing.go_on_by(Routine({}, 1, 1, {}, 0, calls=True))
    assert standing.most == HOLD_WEIGHED + 9
    asking = Routine({}, 1, 1, {}, 0, calls=True, firsts={None: 0})
    alone, beside = (Standing(crowd, most=HOLD_WEIGHED + 9) for crowd in range(2))
    alone.go_on_by(asking)
    beside.go_on_by(asking)
    assert (alone.most, beside.most) == (HOLD_WEIGHED, HOLD_WEIGHED + 9)  # several: what it is good for is counted
    standing.go_on_by(None)
    assert standing.most == HOLD_WEIGHED and standing.routine is None
    idle = Routine({}, 1, 1, {}, 0, calls=False)
    few, many = (Standing(1, held=set(range(count)), most=2 * HOLD_IDLE) for count in (4, MANY))
    few.go_on_by(idle)
    many.go_on_by(idle)
    assert (few.most, many.most) == (HOLD_IDLE, 2 * HOLD_IDLE)


def test_who_comes_between_decisions():
    fixed = RequestPolicy([Way("f", "f", "f", 3, 3)], Past(), 0, fixed=True)
    assert fixed.base.place == 0 and fixed.base.fixed
    free = RequestPolicy([Way("s", "s", "s", 3, 3, instant=True), Way("d", "d", "d", 3, 3)], Past(), 0)
    assert free.base is NOTHING and free.standing is None
    free.settle({"s": 0.5})
    assert free.standing == [0]  # nothing is known of it yet
    free.settle({"s": 1.5})
    assert free.standing == []


def test_however_short_decisions_stand_some_steps_are_learned_from():
    """What steps cost is not learned from the one that decides, so another one has to be."""
    for crowd, most, taught in (
        (0, 3, [0, 3]),
        (0, 16, [0, 4, 8, 12, 16]),
        (1, 3, [0, 3]),
        (2, 7, [0, 7]),
        (2, 1, [0, 1]),
    ):
        standings = [Standing(crowd, most=most, steps=steps) for steps in range(most + 1)]
        assert [standing.steps for standing in standings if standing.teaches] == taught
