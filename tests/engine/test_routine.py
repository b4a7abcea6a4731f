"""Steps between two decisions that go by routine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.outcome import SpeculationStatistics
from foredraft.drafters.growth import FREE, Growth
from foredraft.engine.policy.acceptance import Past
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan
from foredraft.engine.policy.decision import REST, Decider
from foredraft.engine.policy.exploration import Exploration
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.policy import Policy
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.routine import Routine, routine_of
from foredraft.engine.policy.seat import Seat
from foredraft.engine.way import Way

CHAIN = Way("chain 4", "chain", "drafter", 4, 4, stops=True)
LONGER = Way("chain 7", "chain", "drafter", 7, 7, stops=True)
TREE = Way("tree", "tree", "drafter", 4, 16)
PROMPTS = [[7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17, 18]]
OFF, AUTO = SpeculationConfig(method="none"), SpeculationConfig(method="auto", drafters="draft_model:tiny-draft")


def seat(way: Way = CHAIN, *, drafted: bool = True, standing: list[int] | None = None, met: bool = True) -> Seat:
    """A request for which drafting by `way` was decided, or nothing, whose drafter has been met."""
    known = RequestPolicy([way], Past(), 0, crowd=1)
    known.base = Plan(way.label, 1.0, 1.0, way.nodes, 0) if drafted else NOTHING
    known.standing, known.growth = standing, {(0, 1): FREE}
    known.called = {"drafter"} if met else set()
    request = SimpleNamespace(remaining=20, statistics=SpeculationStatistics())
    return Seat(SimpleNamespace(running=SimpleNamespace(request=request), growth=None, chunk=1), known, 4)


def test_a_routine_knows_who_drafts():
    drafted, plain = seat(), seat(drafted=False)
    routine = routine_of([drafted, plain], 1, {}, least=2, room=4)
    assert (routine.drafts, routine.least, routine.crowd) == (True, 2, 1)
    pairs = [(its.work, its.known) for its in (drafted, plain)]
    [found] = routine.seats(pairs)
    assert (found.work, found.place, found.depth) == (drafted.work, 0, 19)
    assert not routine_of([plain], 0, {}, least=1, room=4).drafts
    assert routine_of([plain], 0, {}, least=1, room=4).seats(pairs[1:]) == []


def test_a_routine_says_what_to_draft_where_all_of_that_is_worked_out():
    """For so many requests, or nearly: what a row costs is learned for steps of about one size alike."""
    seats = [seat(), seat(drafted=False), seat()]
    for its in seats:
        its.known.growth, its.work.running.options = {(0, 3): Growth(row=0.3)}, ["option"]
    routine = routine_of(seats, 1, {}, least=2, room=8)
    pairs = [(its.work, its.known) for its in seats]
    assert routine.orders(pairs) == [(seats[0].work, "option"), (seats[2].work, "option")]
    assert [its.work.growth for its in seats] == [Growth(row=0.3), None, Growth(row=0.3)]
    assert routine.orders(pairs[1:]) is None  # not yet for two
    assert routine.orders(pairs[1:2]) == []  # nobody is drafted for
    assert routine_of(seats[1:2], 1, {}, least=1, room=8).orders(pairs) == []


@pytest.mark.parametrize(
    "seats",
    [
        [seat(), seat(standing=[1])],  # an instant draft may be there
        [seat(TREE)],  # what it drafts is cut
        [seat(), seat()],  # more nodes than a step may hold
    ],
)
def test_where_there_is_something_to_weigh_there_is_no_routine(seats):
    assert routine_of(seats, 1, {}, least=len(seats), room=7) is None


def test_a_routine_serves_most_of_those_it_was_made_for():
    seats = [seat() for _ in range(4)]
    routine = routine_of(seats, 1, {}, least=3, room=16)
    pairs = [(its.work, its.known) for its in seats]
    assert routine.suits(pairs, 1) and routine.suits(pairs[1:], 1) and not routine.suits(pairs[2:], 1)
    assert routine.suits(pairs, 2)  # rows cost a little more or less there
    stranger = seat()
    more = [*pairs, (stranger.work, stranger.known)]
    assert routine.strangers(pairs) == [] and routine.strangers(more) == more[4:] and len(routine.seats(more)) == 4


def newcomer(
    way: Way = CHAIN, *, remaining: int = 20, chunk: int = 1, met: bool = False, instant: bool = False
) -> tuple[SimpleNamespace, RequestPolicy]:
    """A request that has come since, of which nothing is known."""
    ways = [Way("suffix 4", "suffix", "suffix", 4, 4, instant=True)] * instant + [way]
    known = RequestPolicy(ways, Past(), 0, crowd=1)
    known.called = {"drafter"} if met else set()
    work = SimpleNamespace(running=SimpleNamespace(request=SimpleNamespace(remaining=remaining)), chunk=chunk)
    return work, known


def test_who_comes_goes_on_as_most_others_do():
    seats = [seat(), seat(drafted=False), seat()]
    routine = routine_of(seats, 1, {"suffix 4": 0.5}, least=2, room=16)
    work, known = newcomer()
    assert routine.welcomes(work, known) and known.base.label == CHAIN.label
    assert [found.known for found in routine.seats([(work, known)])] == [known]
    _, other = newcomer(instant=True)
    other.past.worths[other.asking(0)] = 0.1  # asking it has not been worth its time
    assert routine.welcomes(work, other) and other.base.place == 1  # the same way, at another place


@pytest.mark.parametrize(
    "stranger",
    [
        newcomer(LONGER),  # cannot draft so
        newcomer(remaining=5),  # its drafter would have to read it for a few tokens
        newcomer(chunk=9),  # its drafter needs what the target makes of the prompt
        newcomer(instant=True),  # an instant way may be worth asking
    ],
)
def test_who_has_to_be_decided_about_does_not_join(stranger):
    routine = routine_of([seat(), seat()], 1, {"suffix 4": 0.5}, least=2, room=16)
    assert not routine.welcomes(*stranger) and stranger[1].base is NOTHING
    assert routine.takes(*stranger) == (stranger[0].chunk > 1)


def test_no_more_join_than_a_step_has_room_for():
    routine = routine_of([seat(), seat()], 1, {}, least=2, room=15)
    assert routine.welcomes(*newcomer()) and not routine.welcomes(*newcomer())  # four nodes each


def test_who_leaves_no_choice_waits_for_nobodys_routine():
    routine, (work, known) = routine_of([seat(), seat()], 1, {}, least=2, room=16), newcomer(chunk=9)
    known.fixed = True
    assert not routine.takes(work, known)


def test_who_may_join_early_and_late():
    ready = replace(CHAIN, independent=True)
    routine = routine_of([seat(ready), seat(ready)], 1, {}, least=2, room=16)
    assert routine.welcomes(*newcomer(ready, chunk=9))  # its drafter reads the prompt itself
    assert routine.welcomes(*newcomer(ready, remaining=5, met=True))
    cold, other = newcomer(ready), newcomer(ready)
    other[1].temperature_class, cold[1].crowd = 2, 0
    assert not routine.welcomes(*other) and not routine.welcomes(*cold)
    resting = routine_of([seat(drafted=False) for _ in range(2)], 1, {}, least=2, room=16)
    assert not resting.welcomes(*newcomer())  # another text may be easier


def test_a_routine_of_nothing_is_for_anybody_that_leaves_a_choice():
    resting = seat(drafted=False)
    routine = routine_of([resting], 2, {}, least=1, room=4, anybody=True)
    strangers = [(its.work, its.known) for its in (seat(), seat())]
    assert routine.suits(strangers, 2) and not routine.suits(strangers, 1)
    assert routine.seats(strangers) == routine.strangers(strangers) == []
    routine.open(strangers)
    strangers[0][1].fixed = True
    assert not routine.suits(strangers, 2)


def test_accounts_hold_what_was_written_since_they_were_opened():
    plain = seat(drafted=False)
    routine, pairs = Routine({plain.known: PLAIN}, 1, 0, {}, 0, drafts=False), [(plain.work, plain.known)]
    statistics = plain.work.running.request.statistics
    statistics.rounds, statistics.committed = 5, 6
    routine.open(pairs)
    statistics.rounds, statistics.committed = 8, 9
    routine.open(pairs)  # they are
    assert routine.counts(pairs) and not routine.counts([*pairs, (seat().work, seat().known)])
    [account] = routine.closed()
    assert not routine.counts(pairs)
    assert (account.known, account.steps, account.tokens) == (plain.known, 3, 3)
    assert routine.closed() == []


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=4096, max_batch=4, speculation=OFF)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_steps_by_routine_write_count_and_teach_the_same(
    engine: Engine,
    steady_costs: LiveCosts,
    monkeypatch: pytest.MonkeyPatch,
    prompts: list[list[int]],
    temperature: float,
):
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=3, ignore_eos=True)
    plain = [output.token_ids for output in engine.generate(prompts, params, OFF)]
    draft, learn, menu, routine, heard = Policy.go_on, RequestPolicy.learn, RequestPolicy.menu, 0, 0

    def go_on(self, pool, *, steady):
        nonlocal routine
        draft(self, pool, steady=steady)
        routine += self.by_routine and bool(self.seats)

    def counted(self, *arguments, **named):
        nonlocal heard
        heard += 1
        learn(self, *arguments, **named)

    def chains(known, depth, *, hopeful):  # drafts of trees are cut: they do not go by routine
        plans = menu(known, depth, hopeful=hopeful)
        return [plan for plan in plans if plan.place == PLAIN or known.ways[plan.place].stops]

    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    monkeypatch.setattr(RequestPolicy, "menu", chains)
    monkeypatch.setattr(Policy, "go_on", go_on)
    monkeypatch.setattr(RequestPolicy, "learn", counted)
    outputs = engine.generate(prompts, params, AUTO)
    assert [output.token_ids for output in outputs] == plain
    for output in outputs:
        assert sum(output.statistics.choices.values()) == output.statistics.rounds
        assert output.statistics.plain_seconds > 0
    drafted = sum(
        count for output in outputs for way, count in output.statistics.choices.items() if way.startswith("draft_model")
    )
    assert routine > 2 and (heard == drafted if len(prompts) == 1 else 0 < heard < drafted)


def test_requests_that_wait_are_not_served_beside(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    asked, seated = [], Policy.seated

    def counted(self, options, request, requests=1):
        asked.append(requests)
        return seated(self, options, request, requests)

    monkeypatch.setattr(Policy, "seated", counted)
    engine.cancel(engine.submit(PROMPTS * 3, SamplingParams(max_new_tokens=4), AUTO))
    assert asked == [4] * 9


def test_prompts_that_end_together_are_not_decided_about(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    decide, chunks = Policy.decide, []

    def noted(self, prices):
        chunks.append([work.chunk for work, _ in self.deciding])
        decide(self, prices)

    monkeypatch.setattr(Policy, "decide", noted)
    engine.generate([[token + 50 for token in prompt] for prompt in PROMPTS], SamplingParams(max_new_tokens=8), AUTO)
    assert chunks and all(chunk == 1 for its in chunks for chunk in its)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_who_joins_writes_the_same_and_is_drafted_for_from_its_prompts_end_on(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch, temperature: float
):
    prompts = [[token + shift for token in prompt] for shift in (20, 60, 110) for prompt in PROMPTS]
    params = SamplingParams(max_new_tokens=24, temperature=temperature, seed=5, ignore_eos=True)
    plain = [output.token_ids for output in engine.generate(prompts, params, OFF)]
    joins, draft, joined, early = RequestPolicy.joins, Policy.draft, [], []

    def counted(known, other):
        joined.append(joins(known, other))
        return joined[-1]

    def noted(self, batch, pool):
        draft(self, batch, pool)
        early.extend(len(work.tree) for work in batch if work.chunk > 1)

    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    monkeypatch.setattr(RequestPolicy, "joins", counted)
    monkeypatch.setattr(Policy, "draft", noted)
    monkeypatch.setattr(engine.scheduler, "max_batch", 3)
    with engine.cold():
        assert [output.token_ids for output in engine.generate(prompts, params, AUTO)] == plain
    assert any(joined) and any(early)


def test_who_leaves_no_choice_is_drafted_for_at_the_end_of_its_prompt(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    fixed, drafted, draft = SpeculationConfig(method="draft_model", model="tiny-draft"), [], Policy.draft

    def noted(self, batch, pool):
        draft(self, batch, pool)
        drafted.append([(work.chunk, len(work.tree)) for work in batch])

    monkeypatch.setattr(Policy, "draft", noted)
    prompts = [[token + 90 for token in prompt] for prompt in PROMPTS[:2]]
    engine.generate(prompts, SamplingParams(max_new_tokens=8, ignore_eos=True), [fixed, AUTO])
    (chunk, nodes), (other, none) = drafted[0]
    assert (chunk, other, none) == (4, 3, 0) and nodes > 0


def test_a_drafter_that_must_read_a_text_again_is_not_timed_by_that(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    menu, go_on, calls = RequestPolicy.menu, Policy.go_on, []

    def chains(known, depth, *, hopeful):
        plans = menu(known, depth, hopeful=hopeful)
        return [plan for plan in plans if plan.place == PLAIN or known.ways[plan.place].stops]

    def preempted(self, pool, *, steady):
        if not calls:
            for known in self.requests.values():
                known.called.clear()
        go_on(self, pool, steady=steady)
        calls.append(len(self.calls))

    monkeypatch.setattr(RequestPolicy, "menu", chains)
    monkeypatch.setattr(Policy, "go_on", preempted)
    engine.generate(PROMPTS[0], SamplingParams(max_new_tokens=40, ignore_eos=True), AUTO)
    assert calls[:2] == [0, 1]


def test_a_decision_that_found_nothing_to_try_lets_the_next_ones_rest():
    decider, plan = Decider(Exploration(allowed=10.0)), Plan("a", 0.0, 0.0, 2, 0)
    prices = SimpleNamespace(step=lambda rows: 1.0, draft=lambda label, requests: 1.0)
    looked = []
    for _ in range(2 * REST + 1):
        looked.append(decider.explores(1.0))
        decider.decide([[NOTHING, plan]], [100], prices, exploring=looked[-1])
    assert looked == [place % REST == 0 for place in range(2 * REST + 1)]
    decider.resting, decider.usual = REST, 2.0
    decider.watch(0.5, 1.0)  # the text has changed: speculation is worth less than half of what it was
    assert decider.explores(1.0)
