"""Measuring costs, by a clock that the work itself moves, and keeping them."""

import json
import random
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from foredraft import ConfigError, Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import DrafterNeeds, registry
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine import cost_store
from foredraft.engine.cost_measuring import (
    measured_costs,
    measured_drafts,
    measured_forwards,
)
from foredraft.engine.cost_store import ready_costs, renewed_costs, stored_costs
from foredraft.engine.found_costs import calm, fill_in, in_turn
from foredraft.engine.kept_record import circumstances_of
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 7
NGRAM = SpeculationConfig(method="ngram", num_speculative_tokens=4)
SUFFIX = SpeculationConfig(method="suffix", num_speculative_tokens=4)
CHAIN = SpeculationConfig(method="timed", num_speculative_tokens=3)


def law(history):
    """Logits that depend on the last three tokens, without ties."""
    rng = random.Random(hash(history[-3:]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


class WorkClock:
    """A clock that stands still unless work moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SlowTarget(ScriptedTarget):
    """A forward takes 1 second and 0.25 more a row."""

    def __init__(self, clock: WorkClock, **options) -> None:
        super().__init__(law, vocabulary=VOCABULARY, **options)
        self.clock = clock

    def forward(self, plan, features=()):
        self.clock.now += 1 + 0.25 * plan.tokens.shape[1]
        return super().forward(plan, features)


@pytest.fixture
def clock() -> WorkClock:
    return WorkClock()


@pytest.fixture
def slow(clock, monkeypatch) -> Engine:
    """An engine over a slow target, and a drafter `timed` that takes 2 seconds a call and 0.5 more a request."""

    def script(task) -> list[int]:
        clock.now += 0.5
        return [len(task.request.tokens) % VOCABULARY] * task.depth

    class Slow(ScriptedDrafter):
        def propose(self, tasks) -> list[DraftTree]:
            clock.now += 2
            return super().propose(tasks)

    monkeypatch.setitem(registry, "timed", lambda config, target: Slow(script, needs=DrafterNeeds(samples=True)))
    return Engine(SlowTarget(clock), max_batch=2, speculation=OFF)


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)


def test_what_is_measured_is_what_the_work_takes(slow, clock):
    costs = measured_costs(slow, [CHAIN, NGRAM, OFF], seconds=100_000, clock=clock)
    assert {cost.requests for cost in costs.forwards} == {1, 4, 16}
    for cost in costs.forwards:
        assert cost.seconds == pytest.approx(1 + 0.25 * cost.rows)
    assert costs.forward_seconds(200, 2, 500) == pytest.approx(51)
    assert [(c.requests, c.seconds) for c in costs.drafts["timed 3"]] == [(1, 2.5), (4, 4.0), (16, 10.0)]
    assert set(costs.drafts) == {"timed 3", "ngram 4"}
    assert clock.now < 100_000


@pytest.mark.parametrize("seconds", [0, 20, 60, 300])
def test_forwards_keep_to_the_budget(slow, clock, seconds):
    forwards = measured_forwards(slow, seconds=seconds, clock=clock)
    sizes = {(cost.rows, cost.requests) for cost in forwards}
    assert {(1, 1), (8, 1)} <= sizes
    longest = 1 + 0.25 * 192
    assert clock.now <= max(seconds, 1.25 + 3) + longest
    cheapest = sorted(rows for rows, requests in sizes if requests == 1 and rows != 8)
    assert cheapest == [1, 2, 4, 12, 16, 20, 24, 32, 64, 128, 192][: len(cheapest)]
    assert len(sizes) == 2 if seconds == 0 else len(sizes) > 3
    slow.target.pool.check_integrity([])


def test_sizes_take_turns(slow, clock):
    """A disturbance of a while must not fall on all measurements of one size."""
    measured_forwards(slow, seconds=100_000, clock=clock)
    rows = slow.target.forwards
    assert rows.count(2) > 3
    assert all(before != after for before, after in zip(rows, rows[1:], strict=False) if before == 2)


def test_where_time_is_short_few_rows_are_measured_most_often(slow, clock):
    rows = slow.target.forwards
    measured_forwards(slow, seconds=1200, clock=clock)
    times = Counter(rows)
    assert times[12] >= 4 and 1 <= times[192] <= times[12] - 2
    assert sum(1 + 0.25 * count for count in rows) <= 1200 + 1 + 0.25 * 192


def test_a_round_begins_with_what_it_does_not_count(slow, clock):
    """After a long forward short ones take longer for a while."""
    forward, last = slow.target.forward, [0, 0, 0]

    def unsettled(plan, features=()):
        rows = plan.tokens.shape[1]
        clock.now += max(last) > 20 * rows
        last[:] = [*last[1:], rows]
        return forward(plan, features)

    slow.target.forward = unsettled
    for cost in measured_forwards(slow, seconds=100_000, clock=clock):
        assert cost.seconds == pytest.approx(1 + 0.25 * cost.rows)


def test_one_slow_moment_is_not_taken_for_the_rule(slow, clock):
    forward, turns = slow.target.forward, Counter()

    def disturbed(plan, features=()):
        rows = plan.tokens.shape[1]
        turns[rows] += 1
        clock.now += 50 * (turns[rows] == 2)
        return forward(plan, features)

    slow.target.forward = disturbed
    for cost in measured_forwards(slow, seconds=100_000, clock=clock):
        assert cost.seconds == pytest.approx(1 + 0.25 * cost.rows)


def test_drafts_keep_to_the_budget(slow, clock):
    costs = measured_drafts(slow, [CHAIN], seconds=0, clock=clock)
    assert [cost.requests for cost in costs["timed 3"]] == [1]
    step = 2.5 + 1 + 0.25 * 48
    assert clock.now < 4 * step


def test_a_small_cache_measures_what_fits(clock, monkeypatch):
    for slots in (1, 2, 9, 30, 100):
        engine = Engine(SlowTarget(clock, slots=slots, context_length=20), speculation=OFF)
        costs = measured_costs(engine, [NGRAM], seconds=1000, clock=clock)
        assert all(cost.rows <= min(slots, 20 * cost.requests) for cost in costs.forwards)
        assert ("ngram 4" in costs.drafts) == (slots >= 30)
        engine.target.pool.check_integrity([])


def test_a_drafter_that_cannot_be_made_is_the_callers_mistake(slow, clock):
    with pytest.raises(ConfigError, match="needs a draft model|no loaded model"):
        measured_costs(slow, [SpeculationConfig(method="draft_model")], seconds=1, clock=clock)
    assert clock.now == 0


def test_measuring_leaves_nothing_behind(tiny):
    sampling = SamplingParams(max_new_tokens=24, temperature=0.8, seed=5)
    prompts = ["def add(a, b):", "One two three four one two three"]
    options = [SUFFIX, NGRAM, SpeculationConfig(method="medusa", num_speculative_tokens=3)]
    plain = [output.token_ids for output in tiny.generate(prompts, sampling)]
    before = [output.token_ids for output in tiny.generate(prompts, sampling, SUFFIX)]
    suffix = tiny.drafter_for(SUFFIX)
    past, counted, batch = list(suffix.cached), replace(tiny.statistics), tiny.scheduler.max_batch
    costs = measured_costs(tiny, options, seconds=0.6)
    assert set(costs.drafts) == {"suffix 4", "ngram 4", "medusa 3"}
    tiny.target.pool.check_integrity([])
    assert (list(suffix.cached), suffix.texts) == (past, {})
    assert (tiny.statistics, tiny.scheduler.max_batch, tiny.scheduler.idle) == (counted, batch, True)
    assert [output.token_ids for output in tiny.generate(prompts, sampling, SUFFIX)] == before == plain


def test_a_model_is_measured_at_two_contexts(tiny):
    forwards = measured_forwards(tiny, seconds=300, clock=count().__next__)  # it moves on whenever it is looked at
    alone = {cost.context for cost in forwards if cost.requests == 1}
    assert alone == {64, 512}
    assert all(cost.seconds > 0 for cost in forwards)


@pytest.fixture
def kept(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    return tmp_path / "costs"


@pytest.fixture
def measurements(monkeypatch) -> list:
    """What is asked to be measured; the times are made up."""
    asked: list = []

    def drafts(engine, options, *, seconds):
        asked.append([config.method for config in options])
        return {f"{config.method} 4": (DraftCost(requests=1, seconds=len(asked)),) for config in options}

    def costs(engine, options, *, seconds):
        asked.append("forwards")
        forwards = (ForwardCost(rows=1, requests=1, context=64, seconds=len(asked)),)
        return StepCosts(forwards=forwards, drafts=drafts(engine, options, seconds=seconds))

    monkeypatch.setattr(cost_store, "measured_costs", costs)
    monkeypatch.setattr(cost_store, "measured_drafts", drafts)
    return asked


def test_what_is_known_is_not_measured_again(tiny, kept, measurements):
    first = ready_costs(tiny, [NGRAM])
    assert measurements == ["forwards", ["ngram"]]
    assert ready_costs(tiny, [NGRAM]) == first == stored_costs(tiny.target)
    assert measurements == ["forwards", ["ngram"]]
    both = ready_costs(tiny, [NGRAM, SUFFIX])
    assert measurements[2:] == [["suffix"]]
    assert both.forwards == first.forwards and both.drafts["ngram 4"] == first.drafts["ngram 4"]
    assert ready_costs(tiny, [SUFFIX]) == both
    assert len(list(kept.iterdir())) == 1 and len(measurements) == 3


def test_renewing_measures_and_keeps_other_drafters(tiny, kept, measurements):
    ready_costs(tiny, [NGRAM, SUFFIX])
    renewed = renewed_costs(tiny, [SUFFIX], seconds=1)
    assert measurements == ["forwards", ["ngram", "suffix"], "forwards", ["suffix"]]
    assert renewed.forwards[0].seconds == 3
    assert (renewed.drafts["ngram 4"][0].seconds, renewed.drafts["suffix 4"][0].seconds) == (2, 4)
    assert stored_costs(tiny.target) == renewed


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"measured": 1}', "\udcff", '{"measured": {}, "costs": {"forwards": []}}']
)
def test_a_foreign_file_is_measured_anew(tiny, kept, measurements, text):
    ready_costs(tiny, [NGRAM])
    (file,) = kept.iterdir()
    file.write_bytes(text.encode(errors="surrogateescape"))
    assert stored_costs(tiny.target) is None
    ready_costs(tiny, [NGRAM])
    assert measurements.count("forwards") == 2
    assert stored_costs(tiny.target) is not None


def test_a_broken_table_in_a_file_of_ours_is_measured_anew(tiny, kept, measurements):
    ready_costs(tiny, [NGRAM])
    (file,) = kept.iterdir()
    record = json.loads(file.read_text())
    record["costs"]["forwards"] = []
    file.write_text(json.dumps(record))
    assert stored_costs(tiny.target) is None


def test_other_circumstances_are_measured_apart(tiny, kept, measurements, monkeypatch):
    ready_costs(tiny, [NGRAM])
    monkeypatch.setattr(torch, "get_num_threads", lambda: 97)
    ready_costs(tiny, [NGRAM])
    assert measurements.count("forwards") == 2 and len(list(kept.iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_a_warning(tiny, kept, measurements, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "file"))
    with pytest.warns(UserWarning, match=r"nothing is kept for the next start \(costs\)"):
        costs = ready_costs(tiny, [NGRAM])
    assert costs.drafts["ngram 4"]


def test_a_target_that_is_no_model_is_measured_every_time(slow, kept, measurements):
    assert circumstances_of(slow.target) is None
    ready_costs(slow, [NGRAM])
    ready_costs(slow, [NGRAM])
    assert measurements.count("forwards") == 2 and not kept.exists()


SHORT, WHOLE = (SpeculationConfig(method="medusa", num_speculative_tokens=depth) for depth in (2, 4))
TREE, OTHER = replace(WHOLE, tree_size=9), SpeculationConfig(method="eagle", num_speculative_tokens=4)
KINDS = {"short": SHORT, "whole": WHOLE, "tree": TREE, "other": OTHER}


def test_one_length_of_each_drafter_is_measured_before_others_and_instant_ones_last():
    found = {"short": {1: 1.0}, "whole": {1: 1.2}, "tree": {1: 2.0}, "other": {1: 3.0}}
    assert in_turn(KINDS, found, dict.fromkeys(KINDS, False)) == ["whole", "other", "short", "tree"]
    assert in_turn(KINDS, found, {name: name != "other" for name in KINDS}) == ["other", "whole", "short", "tree"]


def test_what_is_not_measured_grows_as_other_calls_of_its_drafter_do():
    found = {"short": {1: 1.0}, "whole": {1: 2.0, 4: 3.0}, "tree": {}, "other": {1: 5.0}}
    fill_in(found, KINDS, 4)
    assert found == {"short": {1: 1.0, 4: 1.5}, "whole": {1: 2.0, 4: 3.0}, "tree": {}, "other": {1: 5.0}}
    beside_others_only = {"short": {1: 1.0}, "whole": {4: 3.0}}  # the cache had no room for a longer prompt
    fill_in(beside_others_only, KINDS, 4)
    assert beside_others_only == {"short": {1: 1.0}, "whole": {4: 3.0}}


def test_a_draft_that_seems_to_take_longer_than_a_longer_one_met_a_disturbance():
    found = {"short": {1: 9.0}, "whole": {1: 2.0}, "tree": {1: 1.5}, "other": {1: 1.0}}
    calm(found, KINDS, 1)
    assert {label: costs[1] for label, costs in found.items()} == {
        "short": 1.5,
        "whole": 1.5,
        "tree": 1.5,
        "other": 1.0,
    }
