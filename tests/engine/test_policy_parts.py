"""The policy's parts by hand-made examples."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.drafters.drafter import DrafterNeeds
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine.policy.acceptance import ChanceAcceptance, DepthAcceptance, Past
from foredraft.engine.policy.allocation import NOTHING, Plan, allocate, rate_of
from foredraft.engine.policy.decision import within
from foredraft.engine.policy.exploration import FIRST_STEPS, LEAST_SHARE, Exploration
from foredraft.engine.policy.live_costs import LiveCosts, rough_costs, size_class
from foredraft.engine.policy.policy import Policy, sureness
from foredraft.engine.policy.request_policy import ASK_LAST, RequestPolicy
from foredraft.engine.policy.seat import Offer, Seat, cut
from foredraft.engine.policy.shortlist import shortlist
from foredraft.engine.policy.trimming import best_nodes, path_rates, worthwhile
from foredraft.engine.policy.usefulness import Usefulness
from foredraft.engine.running import Option
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.engine.way import Way


class Prices:
    """A step costs `base` up to `flat` rows and 0.1 for each further one; a call 0.5 and 0.05 a request."""

    def __init__(self, flat: int, base: float = 1.0):
        self.flat, self.base = flat, base

    def step(self, draft_rows: float) -> float:
        return self.base + 0.1 * max(0, draft_rows - self.flat)

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


def as_stated(drafted: DraftTree) -> list[float]:
    return list(drafted.chances)


def test_paths_are_as_likely_as_all_of_their_nodes_together():
    assert path_rates(tree(), as_stated) == pytest.approx([0.8, 0.2, 0.4, 0.2])


def test_nodes_that_pay_are_closed_under_parents():
    rates = path_rates(tree(), as_stated)
    assert worthwhile(rates, row_price=0.3) == [0, 2]
    assert worthwhile(rates, row_price=0.9) == []
    assert worthwhile(rates, row_price=0.0) == [0, 1, 2, 3]


def test_the_best_number_of_nodes_for_a_request_alone():
    rates = path_rates(tree(), as_stated)
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
    known = DepthAcceptance(Past(), ("kind",), 3)
    before = known.expected[3]
    for turn in range(30):
        known.learn(3, 1, turn)  # the first is accepted, the second never, the third is never tried
    first, second, third = (rate.own for rate in known.rates)
    assert first.hits == first.tries > 5 and second.hits == 0 and second.tries > 5 and third.tries == 0
    assert known.expected[1] > 0.85 and known.expected[3] < before
    assert known.expected == sorted(known.expected)


def test_what_is_not_tried_is_trusted_less_and_hoped_for_more():
    known = DepthAcceptance(Past(), ("kind",), 3)
    for turn in range(20):
        known.learn(3, 0, turn)
    soon, later = known.hoped(3, 21), known.hoped(3, 80)
    known.let_fade(80)
    assert known.expected[3] < soon < later and known.rates[0].own.tries < 4


def test_another_request_starts_from_the_past_of_its_kind_only():
    past = Past()
    known = DepthAcceptance(past, (0, "a"), 2)
    for turn in range(50):
        known.learn(2, 2, turn)
    assert DepthAcceptance(past, (0, "a"), 2).expected[2] > 1.5
    assert DepthAcceptance(past, (2, "a"), 2).expected[2] < 1.1
    assert DepthAcceptance(past, (0, "b"), 2).expected[2] < 1.1


def test_stated_chances_are_corrected_by_what_became_of_them():
    def rate(chance: float, depth: int = 1) -> float:
        return known.rates(DraftTree.chain([1] * depth, "d", chances=[chance] * depth))[-1]

    known = ChanceAcceptance(Past(), ("kind",))
    assert rate(0.9) > 0.8 > 0.2 > rate(0.05)
    for _ in range(40):
        known.learn(DraftTree.chain([1], "d", chances=[0.9]), set())
    assert rate(0.9) < 0.2 and rate(0.9, depth=2) > 0.5 and rate(0.3) > 0.2


def test_every_node_whose_parent_was_accepted_teaches_its_chance():
    way = Way("w", "w", "w", 3, 4)
    known = RequestPolicy([way], Past(), 0)
    known.learn(0, tree(), path=[0], depth=3)
    tries = [[rate.own.tries for rate in rates] for rates in known.chances["w"].rates_at]
    # 0.8 was hit, 0.2 missed, below the hit 0.5 missed; the last was not tried
    assert tries == [[0, 1, 0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]]


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


def test_acceptance_starts_from_texts_the_target_was_as_sure_of():
    past, way = Past(), Way("w", "w", "w", 3, 3)
    for _ in range(6):
        easy, hard = (RequestPolicy([way], past, 2) for _ in range(2))
        easy.saw_sureness(0.95)
        hard.saw_sureness(0.2)
        for _ in range(8):
            easy.learn(0, DraftTree.chain([1, 2, 3], "d"), [0, 1, 2], 3)
            hard.learn(0, DraftTree.chain([1, 2, 3], "d"), [], 3)
    fresh = RequestPolicy([way], past, 2)
    gains = {}
    for share in (0.95, 0.2):
        fresh.saw_sureness(share if fresh.sure is None else -5.0)
        gains[share] = fresh.menu(9)[1].gain
    assert gains[0.95] > 1.5 > 0.5 > gains[0.2]


def test_how_sure_the_target_is():
    assert sureness(torch.tensor([0.0, 0.0, float("-inf")])) == pytest.approx(0.5)
    assert sureness(torch.tensor([9.0, -90.0])) == pytest.approx(1.0)


def test_a_drafter_of_no_use_is_kept_ready_ever_more_seldom():
    known = Usefulness()
    for _ in range(3):
        assert known.kept(0, ["useful", "useless", "harmful"]) == {"useful", "useless", "harmful"}
        known.saw(0, 20, {"useful": 10.0, "useless": 0.2, "harmful": -3.0})
    known.saw(0, 2, {"useful": -2.0})  # too short to say anything
    assert known.kept(0, ["useful", "useless", "harmful", "new"]) == {"useful", "new"}
    assert known.kept(2, ["useless"]) == {"useless"}  # another kind of request
    tried = [place for place in range(2, 200) if known.kept(0, ["useless"])]
    assert tried == [8, 24, 56, 120, 184]
    known.saw(0, 20, {"useless": 8.0})
    assert known.kept(0, ["useless"])


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
    told = option("told", instant=True)
    request = Request(prompt=[1], params=SamplingParams(), speculation=SpeculationConfig(), seed=0)
    for _ in range(3):
        assert policy.seated((told, silent), request) == (told, silent)
        policy.usefulness.saw(0, 20, {each.way.owner: 0.0 for each in (told, silent)})
    assert policy.seated((told, silent), request) == (silent,)


def test_drafts_that_only_slow_a_step_down_together_are_left_out():
    policy = Policy(draft_rows=64)
    drafts = [Plan(None, 0.5, 0.5, 2, 0), NOTHING]
    policy.seats = [Seat(work=None, known=None, depth=4) for _ in drafts]
    assert policy.cut_together(drafts, Prices(flat=8)) == drafts
    dear = Prices(flat=8)
    dear.step = lambda rows: 3.0 if rows else 1.0
    assert policy.cut_together(drafts, dear) == [NOTHING, NOTHING]
    fixed = [drafts[0]._replace(fixed=True), NOTHING]
    assert policy.cut_together(fixed, dear) == fixed and policy.cut_together(drafts[:1], dear) == drafts[:1]


def test_instant_drafts_are_cut_to_what_pays_beside_everybodys():
    policy = Policy(draft_rows=3)
    policy.seats = [Seat(work=None, known=None, depth=4) for _ in range(2)]
    policy.seats[0].offers[0] = Offer(tree(), [0.9, 0.5, 0.8, 0.3], [0, 1, 2, 3])
    plans = [policy.seats[0].offers[0].plan(0), NOTHING]
    assert policy.cut_together(plans, Prices(flat=8))[0].rows == 3  # the most that one step drafts
    dear = Prices(flat=8)
    dear.step = lambda rows: 3.0 if rows else 1.0
    assert policy.cut_together(plans, dear) == [Plan(None, 0, 0, 0, 0), NOTHING]


def test_a_decision_stands_for_mostly_the_same_requests():
    policy = Policy(draft_rows=8)
    policy.held, policy.hold_steps = set(range(8)), 5

    def holds(*ids: int) -> bool:
        policy.seats = [SimpleNamespace(id=id) for id in ids]
        return policy.holds()

    assert holds(*range(8)) and holds(*range(1, 7), 8, 9) and not holds(*range(5)) and not holds(*range(4, 12))
    policy.held = {1}
    assert holds(1) and not holds(1, 2)  # and not beyond its steps
    policy.held_steps, policy.held = 0, {1, 2}
    assert not holds(1)  # rows of a request alone are priced in another way


def test_who_comes_between_decisions():
    fixed = RequestPolicy([Way("f", "f", "f", 3, 3)], Past(), 0, fixed=True)
    assert fixed.base.place == 0 and fixed.base.fixed
    free = RequestPolicy([Way("s", "s", "s", 3, 3, instant=True), Way("d", "d", "d", 3, 3)], Past(), 0)
    assert free.base is NOTHING and free.standing is None
    free.settle({"s": 0.5})
    assert free.standing == [0]  # nothing is known of it yet
    free.settle({"s": 1.5})
    assert free.standing == []
