"""Asking a way for all of many requests: what that is worth is counted, and tried again where it was not decided."""

from types import SimpleNamespace

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics
from foredraft.engine.policy.acceptance import Past
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan, Values
from foredraft.engine.policy.decision import StepPrices
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.policy import Policy
from foredraft.engine.policy.request_policy import UNASKED, UNASKED_FADE, RequestPolicy
from foredraft.engine.policy.routine import Routine
from foredraft.engine.policy.standing import CHECK_EVERY, TRY_EVERY, TRY_LEAST, TRY_STEPS, Standing
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.engine.way import Way

SUFFIX = Way("suffix 16", "suffix", "suffix", 16, 16, instant=True, stops=True)
MODEL = Way("model 4", "model", "model", 4, 4, stops=True)
FEW, MANY, REQUESTS = 1, 2, 8
ASKED = 1  # place of the way that is asked for all


def pair(past: Past, *, chunk: int = 1, fixed: bool = False) -> tuple:
    request = SimpleNamespace(remaining=20, statistics=SpeculationStatistics())
    work = SimpleNamespace(running=SimpleNamespace(request=request), chunk=chunk)
    return work, RequestPolicy([MODEL, SUFFIX], past, 0, MANY, fixed=fixed)


def prices() -> StepPrices:
    """A plain step takes a second and each draft node a tenth more; a call for suffix drafts a hundredth."""
    rows = (1, REQUESTS, REQUESTS + 100)
    seconds = [1.0 + max(0.0, 0.1 * (count - REQUESTS)) for count in rows]
    forwards = [
        ForwardCost(rows=n, requests=REQUESTS, context=0, seconds=its) for n, its in zip(rows, seconds, strict=True)
    ]
    costs = LiveCosts(
        StepCosts(forwards=tuple(forwards), drafts={SUFFIX.label: (DraftCost(requests=1, seconds=0.01),)})
    )
    costs.light[SUFFIX.label] = True
    return StepPrices(costs, requests=REQUESTS, context=0.0, sampled=False)


def resting(pairs: list, crowd: int = MANY, base: int = PLAIN) -> Standing:
    """It was decided that nobody of these is drafted for, or all by one way."""
    plan = NOTHING if base == PLAIN else Plan("way", 1.0, 1.0, 1, base)
    for _, known in pairs:
        known.base = plan
    found = Standing(crowd, values=Values([NOTHING] * REQUESTS, REQUESTS / 1.0, prices()), prices=prices(), most=48)
    found.routine = Routine({its: base for _, its in pairs}, 1, crowd, {}, 64, calls=base != PLAIN)
    return found


def test_the_nodes_of_all_steps_pay_for_what_these_have_taken():
    routine = Routine({}, 1, MANY, {}, 8, calls=True)
    routine.sizes.update({0: 5, 2: 2, 6: 1})
    assert routine.node_tokens(prices()) == pytest.approx(0.1 * REQUESTS)  # a token takes an eighth of a second
    assert not routine.sizes and routine.node_tokens(prices()) == 0.0


def test_all_steps_say_what_asking_was_worth_and_those_without_it_let_it_fade():
    _, known = pair(Past())
    known.saw_steps(ASKED, 2000, 1000.0)
    assert known.asked_worth(ASKED) == pytest.approx(0.5, abs=0.01)
    known.saw_steps(PLAIN, 100, 0.0)
    faded = known.past.askings[known.asking(ASKED)]
    assert (faded.hits, faded.tries) == pytest.approx((1000 * UNASKED_FADE**100, 2000 * UNASKED_FADE**100))
    known.saw_steps(PLAIN, 2000, 0.0)
    assert known.asked_worth(ASKED) < 0.2 and known.asked_worth(ASKED, UNASKED) > 0.8
    _, fixed = pair(Past(), fixed=True)
    fixed.saw_steps(ASKED, 10, 5.0)
    assert not list(fixed.past.askings.items())


def test_what_nobody_is_asked_is_tried_now_and_then_for_a_few_steps():
    past = Past()
    pairs = [pair(past), pair(past), pair(past, chunk=3), pair(past, fixed=True)]
    rest = resting(pairs)
    rest.since_tried = TRY_EVERY
    assert not rest.turns
    rest.since_tried += 1
    assert rest.turns
    rest.turn(pairs)
    routine, waiting = rest.routine, {its: PLAIN for _, its in pairs[2:]}
    assert routine.tried == {its: ASKED for _, its in pairs[:2]} and routine.drafted == routine.tried | waiting
    for step in range(1, TRY_STEPS + 1):
        assert rest.since_tried == step and not rest.turns
        rest.since_tried += 1
        routine.sizes[2] += 1
    assert rest.turns
    rest.turn(pairs)
    assert not routine.tried and rest.most == 48 and rest.since_tried == 1


@pytest.mark.parametrize(("worth", "decides"), [(0.5, True), (0.0, False)])
def test_where_the_try_has_paid_the_next_step_decides(worth: float, decides: bool):
    pairs = [pair(past) for past in [Past()] * 2]
    rest = resting(pairs)
    rest.routine.tried = {its: ASKED for _, its in pairs}
    pairs[0][1].saw_asked(ASKED, worth, times=100)
    rest.steps = 7
    rest.turn(pairs)
    assert (rest.most == rest.steps) is decides and not rest.routine.tried


@pytest.mark.parametrize(("worth", "decides"), [(0.5, False), (0.0, True)])
def test_where_asking_no_longer_pays_the_next_step_decides(worth: float, decides: bool):
    pairs = [pair(past) for past in [Past()] * 2]
    asking = resting(pairs, base=ASKED)
    asking.since_tried = CHECK_EVERY
    assert not asking.turns
    asking.since_tried += 1
    assert asking.turns
    pairs[0][1].saw_asked(ASKED, worth, times=100)
    asking.steps = 20
    asking.turn(pairs)
    assert (asking.most == asking.steps) is decides and asking.since_tried == 1


def test_a_try_lasts_its_steps_and_ends_at_once_where_there_are_no_drafts():
    pairs = [pair(past) for past in [Past()] * REQUESTS]
    rest = resting(pairs)
    rest.steps = rest.most = 48
    rest.turn(pairs)
    assert rest.most == 48 + TRY_STEPS
    rest.since_tried = TRY_LEAST + 1
    rest.routine.sizes[1] = TRY_LEAST
    assert not rest.turns  # one node a step for eight
    rest.routine.sizes.clear()
    rest.routine.sizes[0] = TRY_LEAST
    assert rest.turns


def test_nothing_is_tried_without_hope_for_those_who_draft_or_beside_few():
    past = Past()
    pairs = [pair(past)]
    pairs[0][1].saw_asked(ASKED, -1.0, times=1000)
    hopeless = resting(pairs)
    hopeless.turn(pairs)
    assert not hopeless.routine.tried
    drafting = resting([pair(Past())], base=0)
    drafting.turn([(work, its) for its, work in zip(drafting.routine.places, [pairs[0][0]], strict=True)])
    assert not drafting.routine.tried
    few = resting([pair(Past())], FEW)
    few.since_tried = 10 * TRY_EVERY
    assert not few.turns


def test_what_was_tried_is_counted_by_the_way_that_was_tried():
    [(work, known)] = pairs = [pair(Past())]
    policy, statistics = Policy(draft_rows=64), work.running.request.statistics
    policy.standing = resting(pairs)
    policy.standing.turn(pairs)
    policy.standing.routine.open(pairs)
    statistics.rounds, statistics.committed, statistics.drafted = 4, 12, 10
    tree = DraftTree.chain([1] * 5, "suffix")
    for _ in range(2):
        policy.standing.routine.note([SimpleNamespace(tree=tree)])
    policy.settle()
    assert statistics.choices == {SUFFIX.label: 4} and known.steps == 4
    seen = known.past.askings[known.asking(ASKED)]
    assert seen.hits == pytest.approx(8 - 10 * 0.1 * REQUESTS) and seen.tries == 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_many_that_try_it_and_then_ask_write_the_same(
    steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch, temperature: float
):
    plain = SpeculationConfig(method="none")
    engine = Engine.from_pretrained(
        "tiny", dtype="fp32", threads=1, cache_tokens=4096, max_batch=REQUESTS, speculation=plain
    )
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    params = SamplingParams(max_new_tokens=80, temperature=temperature, seed=4, ignore_eos=True)
    prompts = [[7 + i, 8 + i, 9 + i, 10 + i] * 8 for i in range(REQUESTS)]
    texts = [output.token_ids for output in engine.generate(prompts, params, plain)]
    turn, tried = Standing.turn, []

    def noted(self, deciding):
        turn(self, deciding)
        tried.append(len(self.routine.tried))

    monkeypatch.setattr(Standing, "turn", noted)
    outputs = engine.generate(prompts, params, SpeculationConfig(method="auto", drafters="suffix"))
    assert [output.token_ids for output in outputs] == texts
    assert tried[:2] == [REQUESTS, 0]
    for output in outputs:
        assert sum(output.statistics.choices.values()) == output.statistics.rounds
    asked = sum(n for output in outputs for way, n in output.statistics.choices.items() if way.startswith("suffix"))
    assert asked > 2 * TRY_STEPS * REQUESTS or temperature
