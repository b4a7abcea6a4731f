"""Requests that lose their cache slots and come back: nothing of it shows in what they write."""

from dataclasses import replace

import pytest
from crowded import VOCABULARY, check_pool, finish, outputs, scripted
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.drafters.prediction import PredictionDrafter
from foredraft.engine import scheduler

PROMPTS = [[1, 2, 3], [4], list(range(7)) * 4, [5, 5, 5, 5, 5], [0, 6], [2] * 23, [3, 1], [6, 4, 2, 0, 1]]
CHAIN, TREE = {"num_speculative_tokens": 4}, {"num_speculative_tokens": 4, "tree_size": 10, "tree_width": 2}
PREDICTION = " ".join(str(token) for token in range(VOCABULARY)) * 3
METHODS = {
    "none": {"method": "none"},
    "suffix": {"method": "suffix"} | CHAIN,
    "suffix tree": {"method": "suffix"} | TREE,
    "ngram": {"method": "ngram"} | CHAIN,
    "lookahead": {"method": "lookahead", "lookahead_window": 3, "lookahead_ngram": 3} | CHAIN,
    "prediction": {"method": "prediction", "prediction": PREDICTION} | CHAIN,
    "recycling tree": {"method": "recycling"} | TREE,
    "cascade": {"method": "cascade", "drafters": "suffix, recycling"} | CHAIN,
    "merged": {"method": "merged", "drafters": "ngram, recycling"} | TREE,
}
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=60),
    "seeded": SamplingParams(max_new_tokens=60, temperature=1.0, seed=3),
    "shaped": SamplingParams(max_new_tokens=60, temperature=0.8, seed=5, frequency_penalty=0.4, top_k=4, logprobs=2),
}


@pytest.fixture(autouse=True)
def little_room_to_grow(monkeypatch):
    """Many preemptions in short texts."""
    monkeypatch.setattr(scheduler, "GROWTH_TOKENS", 4)


@pytest.fixture(scope="module")
def plain():
    engine = scripted()
    return {name: [engine.generate(p, params)[0] for p in PROMPTS] for name, params in SAMPLINGS.items()}


def crowded(slots: int = 150, **options) -> Engine:
    engine = scripted(slots=slots, **({"max_batch": 8} | options))
    config = SpeculationConfig(**METHODS["prediction"])
    engine.drafters[config.drafter_key] = PredictionDrafter(lambda text: [int(digit) for digit in text if digit != " "])
    return engine


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", METHODS)
def test_text_and_counts_are_those_of_an_undisturbed_run(plain, method, sampling, kept):
    engine = crowded(prefix_cache=kept)
    got = engine.generate(PROMPTS, SAMPLINGS[sampling], SpeculationConfig(**METHODS[method]))
    assert engine.scheduler.preemptions >= 2
    for output, expected in zip(got, plain[sampling], strict=True):
        assert output.token_ids == expected.token_ids
        assert output.logprobs == expected.logprobs and output.finish_reason == expected.finish_reason
        assert output.statistics.committed == len(output.sources) == 60
        assert output.statistics.rounds + output.statistics.accepted == 60
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize("method", ["none", "suffix tree"])
def test_no_token_is_told_twice(method):
    engine = crowded(step_rows=16, prefill_rows=5)
    config, told = SpeculationConfig(**METHODS[method]), {}
    requests = engine.submit(PROMPTS, SAMPLINGS["seeded"], config)
    while not engine.scheduler.idle:
        for running, event, output in engine.step():
            told.setdefault(running.index, []).extend(event.tokens)
            assert told[running.index] == running.request.output
            assert (output is not None) == (event.finish_reason is not None)
        check_pool(engine)
    assert engine.scheduler.preemptions >= 2 and [told[i] for i in range(len(PROMPTS))] == outputs(requests)


def test_who_came_last_gives_way_and_is_the_first_to_come_back():
    engine = crowded(slots=70)
    requests = engine.submit([[1, 2], [3, 4], [5, 6]], SAMPLINGS["greedy"], None)
    [later] = engine.submit([0], SAMPLINGS["greedy"], None)
    order, before = [], set()
    while not engine.scheduler.idle:
        engine.step()
        now = set(engine.scheduler.running)
        order += [("lost", one) for one in before - now if not one.request.finished]
        order += [("in", one) for one in sorted(now - before, key=lambda one: one.rank)]
        before = now
    lost, let_in = ([one for kind, one in order if kind == wanted] for wanted in ("lost", "in"))
    assert lost[:3] == [later, requests[2], requests[1]] and requests[0] not in lost
    assert let_in[:5] == [*requests, later, requests[1]] and let_in[-1] is later


def test_the_lowest_priority_gives_way():
    engine = crowded(slots=70)
    [low] = engine.submit([1, 2], SAMPLINGS["greedy"], None, -1)
    engine.step()
    high = engine.submit([[3, 4], [5, 6]], SAMPLINGS["greedy"], None)
    while low in engine.scheduler.running:
        engine.step()
    assert engine.scheduler.running == high and engine.scheduler.waiting == [low]
    finish(engine)
    assert low.request.output == scripted().generate([1, 2], SAMPLINGS["greedy"])[0].token_ids


def test_who_is_alone_ends_whatever_the_pool():
    """Just as many slots as the longest request may hold: they take turns, and each ends."""
    params = SamplingParams(max_new_tokens=40)
    engine = crowded(slots=28 + 40 + OFF.scratch_nodes)
    requests = engine.submit(PROMPTS[:4], params, None)
    steps = finish(engine)
    assert all(running.request.finished for running in requests)
    assert len(steps) < 4 * 60 and engine.scheduler.preemptions > 0


def test_a_preempted_request_can_be_cancelled():
    engine = crowded(slots=70)
    requests = engine.submit([[1, 2], [3, 4], [5, 6]], SAMPLINGS["greedy"], SpeculationConfig(**METHODS["suffix"]))
    while not engine.scheduler.preemptions:
        engine.step()
    [lost] = [running for running in requests if running in engine.scheduler.waiting and running.request.written]
    engine.cancel([lost])
    assert lost not in engine.scheduler.waiting
    finish(engine)
    assert not lost.request.finished and sum(running.request.finished for running in requests) == 2
    assert not engine.policy.requests
    assert not any(drafter.texts for config, drafter in engine.drafters.items() if config.method == "suffix")


def test_a_policy_keeps_what_it_has_learned():
    engine = crowded()
    config = SpeculationConfig(method="auto", drafters="suffix, recycling", num_speculative_tokens=4)
    engine.generate([1], SamplingParams(max_new_tokens=2), config)
    requests = engine.submit(PROMPTS, SAMPLINGS["seeded"], config)
    known = {running.request.id: engine.policy.requests[running.request.id] for running in requests}
    while not engine.scheduler.preemptions:
        engine.step()
    lost = next(running for running in engine.scheduler.waiting if running.request.written)
    assert engine.policy.requests[lost.request.id] is known[lost.request.id] and known[lost.request.id].steps > 0
    finish(engine)
    plain = scripted().generate(PROMPTS, SAMPLINGS["seeded"])
    assert outputs(requests) == [output.token_ids for output in plain]


ARRIVALS = st.lists(
    st.fixed_dictionaries(
        {
            "step": st.integers(0, 30),
            "prompt": st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
            "new": st.integers(1, 40),
            "priority": st.integers(-1, 1),
            "method": st.sampled_from(["none", "suffix", "ngram", "lookahead", "recycling tree"]),
            "seed": st.integers(0, 3),
            "cancelled": st.one_of(st.none(), st.integers(0, 25)),
        }
    ),
    min_size=1,
    max_size=10,
)


ENGINES = st.fixed_dictionaries(
    {
        "slots": st.integers(110, 200),
        "max_batch": st.integers(1, 6),
        "step_rows": st.integers(3, 40),
        "prefill_rows": st.integers(1, 20),
        "prefix_cache": st.booleans(),
    }
)


@settings(max_examples=30, deadline=None)
@given(arrivals=ARRIVALS, options=ENGINES)
def test_whatever_arrives_each_request_writes_what_it_writes_alone(arrivals, options):
    engine = crowded(**options)
    asked, cancelled = [], set()
    for step in range(3000):
        for arrival in arrivals:
            if arrival["step"] == step:
                asked.append((arrival, submitted(engine, arrival)))
        for arrival, running in asked:
            if arrival["cancelled"] == step - arrival["step"] and not running.request.finished:
                engine.cancel([running])
                cancelled.add(running)
        if engine.scheduler.idle:
            if len(asked) == len(arrivals):
                break
            continue
        engine.step()
        check_pool(engine)
    assert engine.scheduler.idle and len(asked) == len(arrivals)
    engine.target.pool.check_integrity([])
    for arrival, running in asked:
        text = alone(arrival)
        if running in cancelled:
            assert running.request.output == text[: running.request.written] and not running.request.finished
        else:
            assert running.request.output == text and running.request.finish_reason == "length"


def submitted(engine: Engine, arrival: dict):
    config = SpeculationConfig(**METHODS[arrival["method"]])
    [running] = engine.submit(arrival["prompt"], sampling(arrival), config, arrival["priority"])
    return running


def sampling(arrival: dict) -> SamplingParams:
    return SamplingParams(max_new_tokens=arrival["new"], temperature=1.0, seed=arrival["seed"])


def alone(arrival: dict) -> list[int]:
    return scripted().generate(arrival["prompt"], sampling(arrival))[0].token_ids


TINY_PROMPTS = [
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return",
    '{"name": "Ann", "age": 31}\n{"name": "Ben", "age": 45}\n{"name": "',
    "Question: Tom has 3 apples and buys 5 more. How many apples has he?\nAnswer:",
    "Once upon a time there was",
]
TINY_SAMPLING = SamplingParams(max_new_tokens=45, ignore_eos=True)  # four cannot end before the pool is full
TINY_SAMPLINGS = {
    "greedy": TINY_SAMPLING,
    "seeded": replace(TINY_SAMPLING, temperature=0.9, seed=11),
    "guided": replace(TINY_SAMPLING, guided_regex="([a-z]{3} ){40}"),
}
TINY_METHODS = {
    "none": {},
    "draft_model": {"model": "tiny-draft"},
    "eagle3": {"tree_size": 8},
    "mtp": {},
    "medusa": {},
    "dflash": {},
    "self_speculation": {"self_exit_layer": 2},
    "cascade": {"drafters": "suffix, eagle3"},
    "auto": {},
}
TINY_CASES = [(method, "seeded", False) for method in TINY_METHODS]
TINY_CASES += [("eagle3", "greedy", False), ("eagle3", "guided", False)]
TINY_CASES += [(method, "seeded", True) for method in ("draft_model", "eagle3", "dflash", "cascade")]


class TestTiny:
    """Networks with caches and features of their own, on the embedded model."""

    @pytest.fixture(scope="class")
    def engines(self) -> dict[bool, Engine]:
        """Over one target and with the same drafters: one that keeps what it has computed, and one that does not."""
        plain = Engine.from_pretrained(
            "tiny", dtype="fp32", threads=1, cache_tokens=160, max_batch=4, speculation=OFF, prefix_cache=False
        )
        keeping = Engine(plain.target, max_batch=4, speculation=OFF)
        keeping.drafters = plain.drafters
        return {False: plain, True: keeping}

    @pytest.fixture(scope="class")
    def texts(self, engines) -> dict[str, list[list[int]]]:
        return {
            kind: [engines[False].generate(prompt, params)[0].token_ids for prompt in TINY_PROMPTS]
            for kind, params in TINY_SAMPLINGS.items()
        }

    @pytest.mark.parametrize(("method", "kind", "kept"), TINY_CASES)
    def test_text_is_that_of_an_undisturbed_run(self, engines, texts, method, kind, kept):
        config, engine = SpeculationConfig(method=method, **TINY_METHODS[method]), engines[kept]
        before = engine.scheduler.preemptions
        got = engine.generate(TINY_PROMPTS, TINY_SAMPLINGS[kind], config)
        assert [output.token_ids for output in got] == texts[kind]
        assert engine.scheduler.preemptions > before
        assert method in ("none", "auto") or sum(output.statistics.accepted for output in got) > 0
        engine.target.pool.check_integrity([])
        assert not any(vars(drafter).get("filled") for drafter in engine.drafters.values())
