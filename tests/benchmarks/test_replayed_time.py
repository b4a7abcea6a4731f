"""Time of which only the costs are kept: what is replayed, and that only the work done decides how long it is."""

import json

import pytest
from byte_model import save_byte_model
from policy import command
from replayed_time import ENOUGH, Medians, ReplayedEngine, ReplayedTime

from foredraft import ConfigError, SamplingParams, SpeculationConfig
from foredraft.engine.step_costs import ForwardCost, StepCosts
from foredraft.model.target import load_target

TABLE = StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=0.5),), drafts={})
CHAIN = SpeculationConfig(method="ngram", num_speculative_tokens=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def target(model):
    return load_target(model, dtype="fp32", threads=1, cache_tokens=1024)


def written(engine: ReplayedEngine, seed: int = 0) -> tuple[float, list[list[int]]]:
    """Seconds by the engine's clock, and what it has written."""
    start = engine.clock()
    outputs = engine.generate([[5, 6, 7] * 4, [8, 9] * 5], SamplingParams(max_new_tokens=16, seed=seed))
    return engine.clock() - start, [output.token_ids for output in outputs]


def test_a_size_that_was_hardly_seen_is_told_by_the_nearest():
    medians = Medians()
    for size, values in {(1, 4): [1.0] * ENOUGH, (4, 4): [2.0, 8.0, 2.0, 2.0, 2.0], (4, 8): [50.0]}.items():
        for value in values:
            medians.saw("plain", size, value)
    assert medians.of("plain", (4, 4)) == 2.0  # one disturbance is no cost
    assert medians.of("plain", (4, 8)) == 2.0 and medians.of("plain", (2, 9)) == 1.0
    assert medians.of("drafted", (1, 4)) is None
    assert Medians.from_record(medians.record()).of("plain", (3, 8)) == 2.0


def test_a_call_lies_between_those_of_the_nearest_depths():
    time = ReplayedTime(TABLE)
    for label, depth, seconds in [
        ("drafter 7", 1, 1.0),
        ("drafter 4", 1, 9.0),
        ("drafter 4", 4, 4.0),
        ("other 4", 2, 50.0),
    ]:
        for _ in range(ENOUGH):
            time.calls.saw(label, (4, depth), seconds)
    assert [time.call_seconds("drafter 7", (4, depth)) for depth in (1, 2, 3, 4, 7)] == [1.0, 2.0, 3.0, 4.0, 4.0]
    for _ in range(ENOUGH):
        time.calls.saw("drafter 7", (4, 7), 13.0)
    assert time.call_seconds("drafter 7", (4, 4)) == 7.0  # now its own say it
    assert time.call_seconds("drafter 7", (2, 7)) == 13.0  # the nearest number of requests
    assert time.call_seconds("new 3", (2, 3)) == 0.5


def test_it_is_the_machines_time_until_it_replays(target):
    time = ReplayedTime(TABLE)
    engine = ReplayedEngine(target, time=time, speculation=CHAIN)
    seconds, texts = written(engine)
    assert 0 < seconds < 60
    time.replay()
    assert time() == 0.0
    first, second = written(engine, 1), written(engine, 1)
    assert first[0] == pytest.approx(second[0]) and first[0] > 0 and first[1] == second[1]
    assert written(ReplayedEngine(target, time=time, speculation=CHAIN), 0)[1] == texts


def test_what_is_replayed_is_what_was_done(target):
    """A clock by whose costs a plain step takes a second, a step with drafts two, and a draft a tenth."""
    seen = {"seen": ENOUGH, "size": [1, 0]}
    steps = [
        {"kind": f"{kind}, greedy", "median": ratio} | seen
        for kind, ratio in {"plain": 2.0, "drafted": 4.0, "reading": 2.0}.items()
    ]
    calls = [{"kind": "ngram 4", "median": 0.1} | seen]
    record = {"table": TABLE.record(), "steps": steps, "calls": calls, "choices": [], "readings": {"ngram 4": 0.01}}
    time = ReplayedTime.from_record(json.loads(json.dumps(record)))
    engine = ReplayedEngine(target, time=time, speculation=CHAIN, prefix_cache=False)
    [output] = engine.generate([[5, 6, 7] * 4], SamplingParams(max_new_tokens=12, temperature=0.0, ignore_eos=True))
    counts = output.statistics
    forwards, calls = time() - counts.draft_seconds, (counts.draft_seconds - 12 * 0.01) / 0.1
    assert calls == pytest.approx(round(calls)) and 1 <= calls <= counts.rounds
    assert forwards == pytest.approx(round(forwards)) and counts.rounds <= forwards <= 2 * counts.rounds
    assert counts.plain_seconds == 0.0  # nobody chose


def test_no_costs_are_refused():
    with pytest.raises(ConfigError, match="no costs to replay"):
        ReplayedTime.from_record({"table": TABLE.record(), "steps": 3})
    none = {"table": TABLE.record(), "steps": [], "calls": [], "readings": {}}
    seen = {"seen": ENOUGH, "size": [1], "median": 1e-4}
    ReplayedTime.from_record(none | {"choices": [{"kind": "after weighed, learned from, plain"} | seen]})
    with pytest.raises(ConfigError, match="of another version.*not learned, plain"):
        ReplayedTime.from_record(none | {"choices": [{"kind": "not learned, plain"} | seen]})


def test_the_benchmark_of_the_policy_replays(model, tmp_path, capsys):
    """By its own costs, then by those of a file: plain decoding beside itself takes exactly as long."""
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    given = f"--target {model} --threads 1 --dtype fp32 --workloads code --concurrencies 2 --max-new-tokens 8".split()
    given += ["--contestants", "plain again,ngram", "--queue", "2"]
    assert command(["--output", str(first), "--replay", *given]) == 0
    assert command(["--output", str(second), "--costs", str(first), *given]) == 0
    for output in (first, second):
        record = json.loads(output.read_text())
        assert [record["noise"][part] for part in ("least", "most")] == pytest.approx([1.0, 1.0])
        assert all(turn["requests"] == 4 for turn in record["turns"])
        assert record["replayed"]["steps"] and record["unlike_plain"]["ngram"] == 0
    capsys.readouterr()
    assert command(["--output", str(second), "--costs", str(tmp_path), *given]) == 2
    assert f"--costs is {tmp_path}" in capsys.readouterr().err
