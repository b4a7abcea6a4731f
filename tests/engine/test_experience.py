"""What the policy has learned outlives its process, and nothing foreign takes its place."""

import json
from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.engine.experience_store import ExperienceStore
from foredraft.engine.policy.acceptance import DepthAcceptance, Tally
from foredraft.engine.policy.experience import KEPT_TRIES, Experience
from foredraft.engine.policy.usefulness import Use
from foredraft.model.target import Target, load_target

KIND = (0, 0, "draft_model")
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny", dtype="fp32", threads=1, cache_tokens=2048)


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    return tmp_path / "experience"


def engine_over(target: Target) -> Engine:
    speculation = SpeculationConfig(method="auto", drafters="recycling")
    return Engine(target, speculation=speculation, prefix_cache=False, cost_seconds=0.2)


def taught() -> Experience:
    """A draft model that is accepted to depth 2 always, and a drafter of no use."""
    experience = Experience()
    known = DepthAcceptance(experience.past, KIND, 3)
    for step in range(200):
        known.learn(3, 2, step)
    known.take_in()
    experience.past.worths[0, 0, "suffix"] = 0.25
    experience.past.askings[0, 2, "suffix"] = Tally(-30.0, 10 * KEPT_TRIES)
    experience.past.rows[0, 1, "draft model 4"] = 2.5
    experience.usefulness.uses[(0, 0), "medusa"] = Use(3, 0.01, 5)
    return experience


def reread(experience: Experience) -> Experience:
    return Experience.from_record(json.loads(json.dumps(experience.record())))


def test_a_record_brings_everything_back_but_part_of_its_weight():
    found = reread(taught())
    first = found.past.tally(*KIND, "depth", 0)
    assert first.tries == first.hits == pytest.approx(KEPT_TRIES)
    expected = DepthAcceptance(found.past, KIND, 3).expected
    assert expected == pytest.approx(DepthAcceptance(taught().past, KIND, 3).expected, abs=0.05)
    assert found.past.worths[0, 0, "suffix"] == 0.25 and found.past.rows[0, 1, "draft model 4"] == 2.5
    assert found.past.askings[0, 2, "suffix"] == Tally(-3.0, KEPT_TRIES)
    use = found.usefulness.uses[(0, 0), "medusa"]
    assert use.worthless and (use.first, use.saved, use.requests) == (3, 0.01, 5)


@pytest.mark.parametrize(
    "spoil",
    [
        {"tallies": None},
        {"tallies": [[[0, 0], 3.0, 2.0]]},
        {"tallies": [[[0, 0], -1.0, 2.0]]},
        {"tallies": [[[0, 0], float("nan"), 2.0]]},
        {"tallies": [[[0, [1]], 1.0, 2.0]]},
        {"tallies": [[[0, "suffix", "stated", 3, True], 1.0, float("nan")]]},
        {"tallies": [[[0, "suffix", "stated", 3, True], -1.0, 2.0]]},
        {"worths": [[[0], "much"]]},
        {"worths": {"a": 1}},
        {"askings": [[[0], 1.0, "many"]]},
        {"askings": [[[0], 1.0, -2.0]]},
        {"rows": [[[0], "much"]]},
        {"uses": [[[0], "a", 1, 1, 0.5]]},
        {"uses": [[[0, 0], "a", 1, float("inf"), 0.5]]},
    ],
)
def test_what_no_policy_has_written_is_refused(spoil):
    with pytest.raises(ValueError, match="not a record of what a policy has learned"):
        Experience.from_record(taught().record() | spoil)
    with pytest.raises(ValueError, match="not a record"):
        Experience.from_record(None)


@pytest.mark.usefixtures("steady_costs")
def test_the_next_engine_begins_with_what_the_last_one_learned(target, kept):
    first = engine_over(target)
    (before,) = first.generate("def add(a, b):", GREEDY)
    learned = first.policy.experience.record()
    assert learned["tallies"] and len(list(kept.iterdir())) == 1
    second = engine_over(target)
    requests = second.submit("def add(a, b):", GREEDY, None)
    assert second.policy.experience.record() == reread(first.policy.experience).record()
    second.cancel(requests)
    (after,) = second.generate("def add(a, b):", GREEDY)
    assert second.policy.experience.record() != learned and after.token_ids == before.token_ids


@pytest.mark.usefixtures("steady_costs")
def test_it_is_written_now_and_then_and_when_it_must_be(target, kept):
    engine = engine_over(target)
    engine.keep_experience(now=True)
    assert not kept.exists()  # nobody has left anything to the policy
    engine.generate("def add(a, b):", GREEDY)
    (file,) = kept.iterdir()
    first = file.read_text()
    engine.generate("def sub(a, b):", GREEDY)
    assert file.read_text() == first
    engine.keep_experience(now=True)
    assert file.read_text() != first


@pytest.mark.parametrize("text", ["", "{", "null", '{"measured": {}, "experience": {}}'])
def test_a_foreign_file_is_as_good_as_none(target, kept, text):
    store = ExperienceStore(target)
    store.write(taught())
    assert store.read().past.tallies
    (file,) = kept.iterdir()
    file.write_text(text)
    assert not store.read().past.tallies
    store.write(taught(), now=True)
    assert store.read().past.tallies
