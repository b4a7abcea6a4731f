"""Steps between two decisions that go by routine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.outcome import SpeculationStatistics
from foredraft.drafters.growth import FREE, Growth
from foredraft.engine.policy import standing
from foredraft.engine.policy.acceptance import Past
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan
from foredraft.engine.policy.decision import REST, Decider
from foredraft.engine.policy.exploration import Exploration
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.policy import Policy
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.routine import Account, Routine, orders_at, routine_of, seats_at
from foredraft.engine.policy.seat import Seat
from foredraft.engine.way import Way

CHAIN = Way("chain 4", "chain", "drafter", 4, 4, stops=True)
SUFFIX = Way("suffix 4", "suffix", "suffix", 4, 4, instant=True, stops=True)
LONGER = Way("chain 7", "chain", "drafter", 7, 7, stops=True)
TREE = Way("tree", "tree", "drafter", 4, 16)
PROMPTS = [[7, 8, 9, 10], [11, 12, 13], [14, 15, 16, 17, 18]]
OFF, AUTO = SpeculationConfig(method="none"), SpeculationConfig(method="auto", drafters="draft_model:tiny-draft")
BOTH = SpeculationConfig(method="auto", drafters="draft_model:tiny-draft,suffix")
THREE = SpeculationConfig(method="auto", drafters="draft_model:tiny-draft,suffix,recycling")


def seat(
    way: Way = CHAIN,
    *others: Way,
    drafted: bool = True,
    standing: list[int] | None = None,
    met: bool = True,
) -> Seat:
    """A request for which drafting by `way` was decided, or nothing, whose drafter has been met; it has `others`, too,
    of which those `standing` are asked in each step."""
    known = RequestPolicy([way, *others], Past(), 0, crowd=1)
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
    [found] = seats_at(routine.places, pairs)
    assert (found.work, found.place, found.depth) == (drafted.work, 0, 19)
    assert not routine_of([plain], 0, {}, least=1, room=4).drafts
    assert seats_at(routine_of([plain], 0, {}, least=1, room=4).places, pairs[1:]) == []


def test_a_routine_says_what_to_draft_where_all_of_that_is_worked_out():
    """For so many requests, or nearly: what a row costs is learned for steps of about one size alike."""
    seats = [seat(), seat(drafted=False), seat()]
    for its in seats:
        its.known.growth, its.work.running.options = {(0, 3): Growth(row=0.3)}, ["option"]
    routine = routine_of(seats, 1, {}, least=2, room=8)
    pairs = [(its.work, its.known) for its in seats]
    assert orders_at(routine.places, pairs) == [(seats[0].work, "option"), (seats[2].work, "option")]
    assert [its.work.growth for its in seats] == [Growth(row=0.3), None, Growth(row=0.3)]
    assert orders_at(routine.places, pairs[1:]) is None  # not yet for two
    assert orders_at(routine.places, pairs[1:2]) == []  # nobody is drafted for
    assert orders_at(routine_of(seats[1:2], 1, {}, least=1, room=8).places, pairs) == []


@pytest.mark.parametrize(
    "seats",
    [
        [seat(), seat(CHAIN, SUFFIX, SUFFIX, standing=[1, 2])],  # two instant drafts may be there
        [seat(CHAIN, replace(SUFFIX, stops=False), standing=[1])],  # the one that may be there is cut
        [seat(CHAIN, replace(SUFFIX, nodes=8), standing=[1])],  # or too large
        [seat(TREE)],  # what it drafts is cut
        [seat(), seat()],  # more nodes than a step may hold
    ],
)
def test_where_there_is_something_to_weigh_there_is_no_routine(seats):
    assert routine_of(seats, 1, {}, least=len(seats), room=7) is None


@pytest.mark.parametrize(
    "only",
    [
        seat(CHAIN, SUFFIX, SUFFIX, standing=[1, 2]),
        seat(CHAIN, replace(SUFFIX, stops=False), standing=[1]),
        seat(TREE),
        seat(CHAIN, SUFFIX, SUFFIX, standing=[1, 2], drafted=False),
    ],
)
def test_the_only_request_is_weighed_by_routine(only):
    routine = routine_of([only], 0, {}, least=1, room=16)
    assert routine.weighs and routine.drafts and routine.calls is (only.known.base.place == 0)
    assert routine.suits([(only.work, only.known)], 0)
    other = seat()
    assert not routine.takes(other.work, other.known)  # it decides for itself, and at its prompt's end drafts at once
    other.work.chunk = 5
    assert not routine.takes(other.work, other.known)


def test_the_only_request_is_not_weighed_by_routine_where_drafts_may_be_too_large_or_nothing_is_to_be_chosen():
    only = seat(TREE)
    assert routine_of([only], 0, {}, least=1, room=15) is None
    only.known.fixed = True
    assert routine_of([only], 0, {}, least=1, room=16) is None


def test_a_routine_serves_most_of_those_it_was_made_for():
    seats = [seat() for _ in range(4)]
    routine = routine_of(seats, 1, {}, least=3, room=16)
    pairs = [(its.work, its.known) for its in seats]
    assert routine.suits(pairs, 1) and routine.suits(pairs[1:], 1) and not routine.suits(pairs[2:], 1)
    assert routine.suits(pairs, 2)  # rows cost a little more or less there
    stranger = seat()
    more = [*pairs, (stranger.work, stranger.known)]
    assert routine.strangers(pairs) == [] and routine.strangers(more) == more[4:]
    assert len(seats_at(routine.places, more)) == 4


def newcomer(
    way: Way = CHAIN,
    *,
    remaining: int = 20,
    chunk: int = 1,
    met: bool = False,
    instant: bool = False,
    stops: bool = False,
) -> tuple[SimpleNamespace, RequestPolicy]:
    """A request that has come since, of which nothing is known; its `instant` way `stops` by itself or not."""
    ways = [replace(SUFFIX, stops=stops)] * instant + [way]
    known = RequestPolicy(ways, Past(), 0, crowd=1)
    known.called = {"drafter"} if met else set()
    work = SimpleNamespace(running=SimpleNamespace(request=SimpleNamespace(remaining=remaining)), chunk=chunk)
    return work, known


def test_who_comes_goes_on_as_most_others_do():
    seats = [seat(), seat(drafted=False), seat()]
    routine = routine_of(seats, 1, {"suffix 4": 0.5}, least=2, room=16)
    work, known = newcomer()
    assert routine.welcomes(work, known) and known.base.label == CHAIN.label
    assert [found.known for found in seats_at(routine.places, [(work, known)])] == [known]
    _, other = newcomer(instant=True)
    other.past.worths[other.asking(0)] = 0.1  # asking it has not been worth its time
    assert routine.welcomes(work, other) and other.base.place == 1  # the same way, at another place


@pytest.mark.parametrize(
    "stranger",
    [
        newcomer(LONGER),  # cannot draft so
        newcomer(remaining=5),  # its drafter would have to read it for a few tokens
        newcomer(chunk=9),  # its drafter needs what the target makes of the prompt
        newcomer(instant=True),  # an instant way whose drafts are cut may be worth asking
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


def test_who_comes_asks_its_own_instant_way_first():
    seats = [seat(CHAIN, SUFFIX, standing=[1]), seat()]
    routine = routine_of(seats, 1, {"suffix 4": 0.5}, least=2, room=16)
    assert routine.firsts == {seats[0].known: 1} and routine.spare == 8
    work, known = newcomer(instant=True, stops=True)
    assert routine.welcomes(work, known) and routine.spare == 4
    assert (routine.places[known], routine.firsts[known]) == (1, 0)


def test_where_nobody_is_called_for_who_comes_only_asks_instant_ways():
    seats = [seat(CHAIN, SUFFIX, drafted=False, standing=[1]) for _ in range(2)]
    routine = routine_of(seats, 1, {"suffix 4": 0.5}, least=2, room=16)
    assert routine.drafts and not routine.calls
    work, known = newcomer(instant=True, stops=True, chunk=9)
    assert routine.welcomes(work, known) and (routine.places[known], routine.firsts[known]) == (PLAIN, 0)
    assert not routine.welcomes(*newcomer())  # none that has paid: another text may be worth a call


def test_accounts_are_split_by_the_way_that_was_taken():
    known, other, statistics = seat().known, seat().known, SpeculationStatistics()
    account = Account(known, statistics, 0, 10, 25, 20)
    assert account.split({}) == account.split({(other, 1): 4}) == [account]
    parts = account.split({(known, 1): 4, (other, 1): 5, (known, 2): 2})
    assert [part[2:] for part in parts] == [(1, 4, 10, 8), (2, 2, 5, 4), (0, 4, 10, 8)]


def test_a_step_that_failed_is_in_no_account():
    account = Account(seat().known, SpeculationStatistics(), 0, 0, 0, 0)
    taken = {(account.known, 1): 3}
    assert account.split(taken) == [account]  # its draft was there, and nothing was written
    first, rest = account._replace(steps=2, tokens=5).split(taken)
    assert (first.place, first.steps, first.tokens) == (1, 2, 5) and rest.steps == rest.tokens == 0


def test_a_routine_of_nothing_is_for_anybody_that_leaves_a_choice():
    resting = seat(drafted=False)
    routine = routine_of([resting], 2, {}, least=1, room=4, others=frozenset({0}))
    strangers = [(its.work, its.known) for its in (seat(), seat())]
    assert routine.suits(strangers, 2) and not routine.suits(strangers, 1)
    assert seats_at(routine.places, strangers) == routine.strangers(strangers) == []
    routine.open(strangers)
    strangers[1][1].temperature_class = 1
    assert not routine.suits(strangers, 2) and routine.suits(strangers[:1], 2)
    strangers[0][1].fixed = True
    assert not routine.suits(strangers[:1], 2)


def test_accounts_hold_what_was_written_since_they_were_opened():
    plain = seat(drafted=False)
    routine, pairs = Routine({plain.known: PLAIN}, 1, 0, {}, 0, calls=False), [(plain.work, plain.known)]
    statistics = plain.work.running.request.statistics
    statistics.rounds, statistics.committed, statistics.drafted = 5, 6, 7
    routine.open(pairs)
    statistics.rounds, statistics.committed, statistics.drafted = 8, 9, 11
    routine.open(pairs)  # they are
    assert routine.counts(pairs) and not routine.counts([*pairs, (seat().work, seat().known)])
    [account] = routine.closed()
    assert not routine.counts(pairs)
    assert (account.known, account.steps, account.tokens, account.nodes) == (plain.known, 3, 3, 4)
    assert routine.closed() == []


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=4096, max_batch=4, speculation=OFF)


@pytest.fixture
def chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only drafts that stop by themselves are decided for: those of trees are cut, and do not go by routine."""
    menu = RequestPolicy.menu

    def chains(known, depth, *, hopeful):
        plans = menu(known, depth, hopeful=hopeful)
        return [plan for plan in plans if plan.place == PLAIN or known.ways[plan.place].stops]

    monkeypatch.setattr(RequestPolicy, "menu", chains)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request looks at an instant draft first, whatever such drafts have been worth."""

    def looks(known, prices):
        known.standing = [place for place in known.instant if known.ways[place].stops][:1]

    monkeypatch.setattr(RequestPolicy, "settle", looks)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The way of every draft that a request has learned from."""
    learn, ways = RequestPolicy.learn, []

    def counted(self, place, *arguments, **named):
        ways.append(place)
        learn(self, place, *arguments, **named)

    monkeypatch.setattr(RequestPolicy, "learn", counted)
    return ways


@pytest.mark.usefixtures("chains")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS])
def test_steps_by_routine_write_count_and_teach_the_same(
    engine: Engine,
    steady_costs: LiveCosts,
    monkeypatch: pytest.MonkeyPatch,
    heard: list[int],
    prompts: list[list[int]],
    temperature: float,
):
    params = SamplingParams(max_new_tokens=40, temperature=temperature, seed=3, ignore_eos=True)
    plain = [output.token_ids for output in engine.generate(prompts, params, OFF)]
    draft, routine = Policy.go_on, 0

    def go_on(self, pool, *, steady):
        nonlocal routine
        draft(self, pool, steady=steady)
        routine += self.by_routine and bool(self.seats)

    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    monkeypatch.setattr(Policy, "go_on", go_on)
    outputs = engine.generate(prompts, params, AUTO)
    assert [output.token_ids for output in outputs] == plain
    for output in outputs:
        assert sum(output.statistics.choices.values()) == output.statistics.rounds
        assert output.statistics.plain_seconds > 0
    drafted = sum(
        count for output in outputs for way, count in output.statistics.choices.items() if way.startswith("draft_model")
    )
    assert routine > 2 and (len(heard) == drafted if len(prompts) == 1 else 0 < len(heard) < drafted)


@pytest.mark.usefixtures("chains", "looks")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_that_look_at_instant_drafts_first_write_and_count_the_same(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch, temperature: float
):
    prompts = [prompt * 8 for prompt in PROMPTS]
    params = SamplingParams(max_new_tokens=48, temperature=temperature, seed=4, ignore_eos=True)
    plain = [output.token_ids for output in engine.generate(prompts, params, OFF)]
    look, verified = Policy.look_first, []

    def noted(self, routine, pool):
        look(self, routine, pool)
        drafted = [work.tree for work, _ in self.deciding if len(work.tree)]
        verified.extend("suffix" in tree.drafters for tree in drafted)
        assert len(self.seats) == (len(drafted) if self.heard else 0)

    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    monkeypatch.setattr(Policy, "look_first", noted)
    with engine.cold():
        outputs = engine.generate(prompts, params, BOTH)
    assert [output.token_ids for output in outputs] == plain
    assert any(verified) and not all(verified)
    for output in outputs:
        assert sum(output.statistics.choices.values()) == output.statistics.rounds
    suffix = sum(n for output in outputs for way, n in output.statistics.choices.items() if way.startswith("suffix"))
    assert suffix >= sum(verified)


@pytest.mark.usefixtures("chains")
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_that_weigh_the_only_request_write_and_count_the_same(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch, heard: list[int], temperature: float
):
    params = SamplingParams(max_new_tokens=64, temperature=temperature, seed=4, ignore_eos=True)
    [plain] = engine.generate([PROMPTS[0] * 8], params, OFF)
    weigh, ways = Policy.weigh_alone, []
    monkeypatch.setattr(RequestPolicy, "first_beside", lambda self, base: None)

    def counted(self, routine, pool):
        [(work, known)] = self.deciding
        known.standing = known.instant
        weigh(self, routine, pool)
        assert len(self.seats) <= 1 and len(work.tree) <= self.draft_rows
        ways.extend(known.ways[its.place].owner.split()[0] for its in self.seats)

    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    monkeypatch.setattr(Policy, "weigh_alone", counted)
    with engine.cold():
        [output] = engine.generate([PROMPTS[0] * 8], params, THREE)
    assert output.token_ids == plain.token_ids
    choices = output.statistics.choices
    assert sum(choices.values()) == output.statistics.rounds
    assert "draft_model" in ways and len({*ways}) > 1
    assert len(heard) == sum(count for way, count in choices.items() if way.startswith("draft_model"))
    for name in {*ways}:
        assert ways.count(name) <= sum(count for way, count in choices.items() if way.startswith(name))


@pytest.mark.usefixtures("looks")
def test_a_fault_after_a_look_is_the_one_that_is_told(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    look, placed = Policy.look_first, []

    def noted(self, routine, pool):
        look(self, routine, pool)
        placed.extend(self.seats)
        if placed:
            raise OSError("the target broke")

    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    monkeypatch.setattr(Policy, "look_first", noted)
    monkeypatch.setattr(standing, "TEACHES", (1, 1, 1))
    params = SamplingParams(max_new_tokens=24, ignore_eos=True)
    with engine.cold(), pytest.raises(OSError, match="the target broke"):
        engine.generate([prompt * 8 for prompt in PROMPTS], params, BOTH)


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


@pytest.mark.usefixtures("chains")
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


@pytest.mark.usefixtures("chains")
def test_a_drafter_that_must_read_a_text_again_is_not_timed_by_that(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    go_on, calls = Policy.go_on, []

    def preempted(self, pool, *, steady):
        if not calls:
            for running in list(self.requests):
                self.start_over(SimpleNamespace(id=running))
        go_on(self, pool, steady=steady)
        calls.append(len(self.calls))

    monkeypatch.setattr(Policy, "go_on", preempted)
    engine.generate(PROMPTS[0], SamplingParams(max_new_tokens=40, ignore_eos=True), AUTO)
    assert calls[:4] == [0, 0, 0, 1]  # of a request alone one step in four is learned from


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


@pytest.mark.usefixtures("chains")
def test_who_leaves_no_choice_is_drafted_whole_beside_those_whose_drafts_end(
    engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    fixed = SpeculationConfig(method="draft_model", model="tiny-draft", num_speculative_tokens=3)
    sizes, timed = [], Policy.timed

    def noted(self, seats):
        drafts = timed(self, seats)
        sizes.extend((seat.known.fixed, len(tree), seat.depth) for seat, tree in drafts)
        return drafts

    monkeypatch.setattr(Policy, "timed", noted)
    monkeypatch.setattr(LiveCosts, "another_token", lambda *_: 9.0)  # seconds: no chain would go on for that
    engine.generate(PROMPTS[:2], SamplingParams(max_new_tokens=24, ignore_eos=True), [fixed, AUTO])
    whole = [size for kept, size, depth in sizes if kept and depth >= 3]
    assert len(whole) > 3 and set(whole) == {3}
