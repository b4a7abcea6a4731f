"""Method auto on real models: drafters change within a request, the text never does."""

from dataclasses import replace

import pytest
import torch

from foredraft.core.errors import ConfigError
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.policy import policy
from foredraft.engine.policy.allocation import NOTHING
from foredraft.engine.policy.cutting import Cutting
from foredraft.engine.policy.decision import Decider, Decision
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.portfolio import options_for
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.seat import Seat
from foredraft.model.scripted_target import ScriptedTarget

AUTO = SpeculationConfig(method="auto")
PROMPTS = [
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    '{"name": "Ann", "age": 31}\n{"name": "Ben", "age": 45}\n{"name": "',
    "Question: Tom has 3 apples and buys 5 more. How many apples has he?\nAnswer:",
    "Once upon a time there was",
]
GREEDY = SamplingParams(max_new_tokens=48, ignore_eos=True)
SEEDED = SamplingParams(max_new_tokens=48, ignore_eos=True, temperature=1.0, seed=5)
SHAPED = SamplingParams(max_new_tokens=32, temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=3)


@pytest.fixture(scope="module")
def engine() -> Engine:
    """One engine with every head of `tiny`: what it learns in one test the next one starts from."""
    return Engine.from_pretrained(
        "tiny", dtype="fp32", device="cpu", threads=1, cache_tokens=4096, max_batch=4, speculation=OFF
    )


class Restless(Decider):
    """Chooses another plan in every step, whatever it costs."""

    turn = 0

    def decide(self, menus, remaining, prices, *, exploring: bool) -> Decision:
        best = super().decide(menus, remaining, prices, exploring=exploring)
        Restless.turn += 1
        chosen = [menu[(Restless.turn + place) % len(menu)] for place, menu in enumerate(menus)]
        return Decision(chosen, best.values, None)


@pytest.fixture
def steady(engine: Engine, steady_costs: LiveCosts, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The same engine, whose costs stay what they are."""
    monkeypatch.setattr(engine.policy, "costs", steady_costs)
    return engine


@pytest.fixture
def restless(steady: Engine, monkeypatch: pytest.MonkeyPatch):
    engine = steady
    kept, engine.policy.decider = engine.policy.decider, Restless()
    monkeypatch.setattr(policy, "hold_for", lambda requests, plain_seconds, **_: 0)
    monkeypatch.setattr(Cutting, "instant", lambda self, plans: plans)
    yield engine
    engine.policy.decider = kept


@pytest.mark.parametrize("params", [GREEDY, SEEDED, SHAPED], ids=["greedy", "seeded", "shaped"])
def test_drafters_that_change_in_every_step_change_no_text(restless: Engine, params: SamplingParams):
    plain = restless.generate(PROMPTS, params, OFF)
    together = restless.generate(PROMPTS, params, AUTO)
    assert [o.token_ids for o in together] == [o.token_ids for o in plain]
    alone = [restless.generate(prompt, params, AUTO)[0].token_ids for prompt in PROMPTS[:2]]
    assert alone == [o.token_ids for o in plain[:2]]
    restless.target.pool.check_integrity([])


def test_all_of_a_requests_drafters_draft_and_are_accepted(restless: Engine):
    heads = SpeculationConfig(method="auto", drafters="medusa, dflash, eagle3, mtp")  # suffix drafts are too good here
    outputs = restless.generate(PROMPTS, GREEDY, heads) + restless.generate(PROMPTS, GREEDY, AUTO)
    accepted = {name for output in outputs for name in output.statistics.accepted_by}
    assert accepted >= {"suffix", "medusa", "dflash", "eagle3", "mtp"}
    assert max(len(output.statistics.choices) for output in outputs) >= 6


@pytest.mark.parametrize("params", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_policys_own_choices_change_no_text(engine: Engine, params: SamplingParams):
    plain = engine.generate(PROMPTS, params, OFF)
    for _ in range(2):
        assert [o.token_ids for o in engine.generate(PROMPTS, params, AUTO)] == [o.token_ids for o in plain]
    engine.target.pool.check_integrity([])


def test_requests_with_and_without_a_choice_share_steps(engine: Engine):
    configs = [AUTO, OFF, SpeculationConfig(method="medusa", tree_size=8), AUTO]
    plain = engine.generate(PROMPTS, GREEDY, OFF)
    outputs = engine.generate(PROMPTS, GREEDY, configs)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
    assert [o.drafter for o in outputs] == ["auto", "none", "medusa", "auto"]


@pytest.mark.parametrize("rule", ["standard", "block", "tree", "traversal"])
def test_other_rules_run_under_auto(restless: Engine, rule: str):
    config = SpeculationConfig(method="auto", rejection_sample_method=rule)
    outputs = restless.generate(PROMPTS, SEEDED, config)
    assert all(len(output.token_ids) == 48 for output in outputs)
    assert sum(output.statistics.accepted for output in outputs) > 0
    greedy = restless.generate(PROMPTS[:2], GREEDY, config)
    assert [o.token_ids for o in greedy] == [o.token_ids for o in restless.generate(PROMPTS[:2], GREEDY, OFF)]


def test_forced_tokens_and_an_expected_text_are_drafted_where_there_are_any(steady: Engine):
    guided = SamplingParams(max_new_tokens=24, guided_regex='\\{"name": "[A-Z][a-z]{2,9}", "age": [0-9]{1,2}\\}')
    beside_few = SpeculationConfig(method="auto", drafters="medusa")  # whom else it may ask depends on times
    [plain] = steady.generate("A person as JSON: ", guided, OFF)
    [output] = steady.generate("A person as JSON: ", guided, beside_few)
    assert output.token_ids == plain.token_ids and output.statistics.accepted_by["grammar"] > 0
    [plain] = steady.generate(PROMPTS[3], SEEDED, OFF)
    expecting = SpeculationConfig(method="auto", drafters="prediction, medusa", prediction=plain.text)
    [output] = steady.generate(PROMPTS[3], SEEDED, expecting)
    assert output.token_ids == plain.token_ids and output.statistics.accepted_by["prediction"] > 10


def test_only_the_drafters_named_are_asked(engine: Engine):
    config = SpeculationConfig(method="auto", drafters="ngram, medusa")
    [output] = engine.generate(PROMPTS[0], GREEDY, config)
    assert set(output.statistics.accepted_by) <= {"ngram", "medusa"}
    assert {label.split()[0] for label in output.statistics.choices} <= {"ngram", "medusa", "plain"}


def test_an_embedded_target_is_drafted_for_by_all_that_is_made_for_it(engine: Engine):
    options = options_for(AUTO, engine.target, engine.drafter_for, guided=False)
    made = {"draft_model", "eagle3", "medusa", "mtp", "dflash"}
    assert {option.speculation.method for option in options} == made | {"suffix", "recycling"}
    assert {option.speculation.model for option in options} == {"tiny-draft", None}


def test_a_requests_limits_hold(restless: Engine):
    config = SpeculationConfig(method="auto", num_speculative_tokens=2, tree_size=3)
    for option in options_for(config, restless.target, restless.drafter_for, guided=False):
        assert option.speculation.depth <= 2 and option.speculation.nodes <= 3
    [output] = restless.generate(PROMPTS[0], GREEDY, config)
    assert len(output.statistics.drafted_at) <= 2


@pytest.mark.parametrize("limit", [0, 5])
def test_the_engines_limit_on_draft_rows_holds(restless: Engine, monkeypatch: pytest.MonkeyPatch, limit: int):
    monkeypatch.setattr(restless.policy, "draft_rows", limit)
    forward, rows = restless.target.forward, []

    def watched(plan, features=()):
        rows.append(sum(segment.rows - 1 for segment in plan.segments))
        return forward(plan, features)

    monkeypatch.setattr(restless.target, "forward", watched)
    outputs = restless.generate(PROMPTS, GREEDY, AUTO)
    assert max(rows[1:]) <= limit  # the first step reads the prompts
    assert (sum(output.statistics.drafted for output in outputs) > 0) == (limit > 0)


def test_statistics_say_what_was_chosen_and_what_it_gained(steady: Engine):
    [output] = steady.generate(PROMPTS[0], GREEDY, AUTO)
    statistics = output.statistics
    assert sum(statistics.choices.values()) == statistics.rounds
    assert statistics.speed_up > 0
    heads = SpeculationConfig(method="auto", drafters="medusa, mtp")  # suffix drafts leave nothing to try
    for seed in range(16):  # an experiment waits until there is time that may be spent on it
        if not steady.policy.report()["experiments"]:
            steady.generate(PROMPTS, replace(SEEDED, seed=seed), heads)
    report = steady.policy.report()
    assert report["speed_up"] > 0 and 0 <= report["exploration_share"] < 1 and report["experiments"] > 0


def test_what_steps_teach_waits_for_a_decision_and_holds_nothing_large(steady: Engine):
    most, kept = 0, []
    fresh = replace(SEEDED, seed=77, max_new_tokens=96)  # of texts known from other tests whole steps are accepted
    for _ in steady.stream(PROMPTS, fresh, AUTO):
        lessons = steady.policy.lessons
        most, kept = max(most, len(lessons)), [seat.work for lesson in lessons for seat in lesson.seats]
        assert all(work.logits is None and not work.states and work.successors is None for work in kept)
    assert most > 1 and not steady.policy.lessons  # who ends knows all that it has done


def test_a_decision_made_before_the_target_has_shown_anything_does_not_stand(steady: Engine):
    """Where the cache has all of a prompt but its last token, the first step may draft; it knows nothing of it."""
    steady.generate(PROMPTS, GREEDY, AUTO)  # the prompts are cached from now on
    stands = [steady.policy.standing.most for _ in steady.stream(PROMPTS, replace(SEEDED, max_new_tokens=8), AUTO)]
    assert stands[0] == 0


def test_a_step_is_learned_of_once(steady: Engine, monkeypatch: pytest.MonkeyPatch):
    """Steps that read prompts alone decide nothing: what the one before them drafted is no matter of theirs."""
    learned = []
    monkeypatch.setattr(Seat, "learn", lambda seat, *_, **__: learned.append(seat))
    monkeypatch.setattr(steady.scheduler, "step_rows", 8)
    with steady.cold():
        for prompt in PROMPTS:
            steady.generate(prompt, GREEDY, AUTO)
    assert learned and len(learned) == len(set(map(id, learned)))


def test_where_nobody_drafts_requests_are_counted_all_the_same(steady: Engine, monkeypatch: pytest.MonkeyPatch):
    decide, idle = Decider.decide, 0

    def nothing(self, menus, remaining, prices, *, exploring: bool) -> Decision:
        decision = decide(self, menus, remaining, prices, exploring=exploring)
        return replace(decision, chosen=[NOTHING] * len(menus), experiment=None)

    def settle(known: RequestPolicy, prices: dict[str, float]) -> None:
        known.standing = []

    monkeypatch.setattr(Decider, "decide", nothing)
    monkeypatch.setattr(RequestPolicy, "settle", settle)
    monkeypatch.setattr(RequestPolicy, "asks", lambda known, place, price: False)
    named = replace(AUTO, drafters="suffix, draft_model:tiny-draft")  # whom else it may ask depends on times
    requests, outputs = steady.submit(PROMPTS, GREEDY, named), {}
    for _ in steady.run(requests, outputs):
        policy = steady.policy
        idle += bool(policy.deciding and not policy.seats)
        assert not any(lesson.seats for lesson in policy.lessons)
    assert idle
    assert [outputs[i, 0].token_ids for i in range(len(PROMPTS))] == [
        output.token_ids for output in steady.generate(PROMPTS, GREEDY, OFF)
    ]
    for running in requests:
        statistics = running.request.statistics
        assert statistics.choices == {"plain": statistics.rounds} and statistics.plain_seconds > 0


def test_a_plain_request_estimates_nothing(engine: Engine):
    [output] = engine.generate(PROMPTS[0], GREEDY, OFF)
    assert output.statistics.choices == {} and output.statistics.speed_up is None


def test_cancelled_requests_leave_nothing_behind(engine: Engine):
    stream = engine.stream(PROMPTS, GREEDY, AUTO)
    for _ in range(6):
        next(stream)
    stream.close()
    engine.target.pool.check_integrity([])
    assert not engine.policy.requests


def test_auto_serves_a_target_that_is_no_model():
    law = torch.randn(6, 6, generator=torch.Generator().manual_seed(0)).tolist()

    def target() -> ScriptedTarget:
        return ScriptedTarget(lambda history: law[history[-1]], vocabulary=6)

    prompts, params = [[1, 2, 3], [4]], SamplingParams(max_new_tokens=60, seed=1, temperature=1.0)
    plain = Engine(target(), speculation=OFF).generate(prompts, params)
    outputs = Engine(target(), speculation=AUTO).generate(prompts, params)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"drafters": "ngram,,suffix"}, "drafters"),
        ({"drafters": "ngrams"}, "ngrams"),
        ({"drafters": "draft_model"}, "draft model"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"method": "ngram", "prediction": "a text"}, "method ngram does not draft from a prediction"),
        ({"method": "prediction"}, "give it as prediction"),
        ({"method": "ngram", "drafters": "suffix, medusa"}, "drafters is 'suffix, medusa', and method ngram"),
    ],
)
def test_mistakes_are_named_before_anything_runs(engine: Engine, config: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        engine.generate(PROMPTS[0], GREEDY, SpeculationConfig(**({"method": "auto"} | config)))
