"""What an engine keeps of the ways to draft that requests have asked for: shared where it can be, never without end."""

from collections.abc import Iterator

import pytest

from foredraft.core.drafter_keys import MADE_BY
from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.recent import Recent
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF, SpeculationConfig
from foredraft.drafters.drafter import BUILT_IN, make_drafter
from foredraft.engine import kept_ways
from foredraft.engine.engine import Engine
from foredraft.engine.policy import ways_taken
from foredraft.engine.policy.acceptance import KEPT_TALLIES, Past
from foredraft.engine.policy.live_costs import KEPT_DRIFTS, LiveCosts
from foredraft.engine.step_costs import ForwardCost, StepCosts
from foredraft.model.scripted_target import ScriptedTarget

SHORT = SamplingParams(max_new_tokens=3)


def engine_over(**given) -> Engine:
    target = ScriptedTarget(lambda history: [float(token == len(history) % 5) for token in range(7)], vocabulary=7)
    return Engine(target, cost_seconds=0.0, **({"speculation": OFF} | given))


def lookaheads(count: int) -> Iterator[SpeculationConfig]:
    """So many configs, each of a drafter of its own."""
    for place in range(count):
        yield SpeculationConfig(method="lookahead", lookahead_window=1 + place % 8, lookahead_guesses=place // 8)


def test_every_method_says_what_its_drafter_is_made_by():
    assert MADE_BY.keys() == BUILT_IN.keys()


class Watched:
    """A config that notes what is read of it."""

    def __init__(self, config: SpeculationConfig):
        self.config, self.read = config, set()

    def __getattr__(self, name: str):
        self.read.add(name)
        return getattr(self.config, name)


@pytest.mark.parametrize("method", ["ngram", "suffix", "recycling", "lookahead", "grammar", "none"])
def test_a_drafter_is_made_by_nothing_that_its_key_leaves_out(method):
    config = Watched(SpeculationConfig(method=method))
    make_drafter(config, engine_over().target)
    assert config.read <= {*MADE_BY[method], "method", "model"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method": "ngram"}, {"method": "ngram", "prompt_lookup_max": 7, "lookahead_window": 3}),
        ({"method": "suffix"}, {"method": "suffix", "suffix_decoding_max_spec_factor": 2.0, "recycling_candidates": 3}),
        ({"method": "eagle3", "model": "x"}, {"method": "eagle3", "model": "x", "lookahead_window": 3}),
        ({"method": "merged", "drafters": "suffix, ngram"}, {"method": "merged", "drafters": " suffix ,ngram"}),
        (
            {"method": "merged", "drafters": "suffix, ngram"},
            {"method": "merged", "drafters": "suffix, ngram", "lookahead_window": 3},
        ),
    ],
)
def test_configs_share_a_drafter_that_is_made_alike(one, other):
    assert SpeculationConfig(**one).drafter_key == SpeculationConfig(**other).drafter_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"method": "lookahead"}, {"method": "lookahead", "lookahead_window": 3}),
        ({"method": "eagle3", "model": "x"}, {"method": "eagle3", "model": "y"}),
        (
            {"method": "merged", "drafters": "lookahead, ngram"},
            {"method": "merged", "drafters": "lookahead, ngram", "lookahead_window": 3},
        ),
        ({"method": "cascade", "drafters": "suffix, ngram"}, {"method": "cascade", "drafters": "ngram, suffix"}),
        ({"method": "of the caller"}, {"method": "of the caller", "lookahead_window": 3}),
    ],
)
def test_configs_have_drafters_of_their_own_where_these_are_made_otherwise(one, other):
    assert SpeculationConfig(**one).drafter_key != SpeculationConfig(**other).drafter_key


@pytest.fixture
def few(monkeypatch) -> int:
    """How many drafters are kept that nobody uses, for the moment."""
    monkeypatch.setattr(kept_ways, "SPARE_DRAFTERS", 3)
    return 3


def test_drafters_that_nobody_uses_do_not_add_up(few):
    engine = engine_over(speculation=SpeculationConfig(method="ngram"))
    own = engine.drafter_for(engine.speculation)
    for config in lookaheads(4 * few):
        engine.generate([[1, 2, 3]], SHORT, config)
    assert len(engine.drafters) <= few + 2
    assert engine.drafter_for(engine.speculation) is own
    kept = {id(drafter) for drafter in engine.drafters.values()}
    assert {id(option.drafter) for options in engine.options.values() for option in options} <= kept


def test_the_last_ones_asked_for_are_kept(few):
    engine = engine_over()
    first, *others = lookaheads(4 * few)
    favourite = engine.drafter_for(first)
    for config in others:
        engine.generate([[1, 2, 3]], SHORT, config)
        engine.generate([[1, 2, 3]], SHORT, first)
    assert engine.drafter_for(first) is favourite


def test_a_request_keeps_its_drafter_until_it_ends(few):
    engine = engine_over()
    mine, *others = lookaheads(4 * few)
    (running,) = engine.submit([[1, 2, 3]], SamplingParams(max_new_tokens=200, ignore_eos=True), mine)
    (drafter,) = running.drafters
    for config in others:
        engine.cancel(engine.submit([[1, 2, 3]], SHORT, config))
    assert engine.drafter_for(mine) is drafter
    engine.cancel([running])


def test_configs_that_share_their_drafters_do_not_add_up():
    engine = engine_over()
    for place in range(kept_ways.KEPT_OPTIONS + 10):
        config = SpeculationConfig(method="ngram", draft_confidence_threshold=place / 1000)
        engine.cancel(engine.submit([[1, 2, 3]], SHORT, config))
    assert len(engine.options) == kept_ways.KEPT_OPTIONS and len(engine.drafters) == 2


def test_choices_are_told_apart_as_far_as_there_are_few(monkeypatch):
    monkeypatch.setattr(ways_taken, "MOST_LABELS", 2)
    known, statistics = ways_taken.WaysTaken(), SpeculationStatistics()
    for depth in (1, 1, 2, 3, 4):
        known.count(f"ngram {depth}", statistics, 1, 1.0)
    assert known.choices == {"ngram 1": 2, "ngram 2": 1, "other": 2}
    assert statistics.choices == dict(known.choices) and statistics.plain_seconds == 5.0


def test_what_requests_have_taught_does_not_add_up():
    past = Past()
    for place in range(KEPT_TALLIES + 10):
        past.tally("kind", place).add(True, 1.0)
        assert past.tally("often").tries == 0
    assert len(past.tallies) == KEPT_TALLIES and ("often",) in past.tallies and ("kind", 0) not in past.tallies


def test_costs_of_drafts_do_not_add_up():
    costs = LiveCosts(StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1.0),), drafts={}))
    for place in range(KEPT_DRIFTS + 10):
        costs.saw_draft(f"way {place}", 1, 0.5)
    assert len(costs.drafts) == KEPT_DRIFTS


def test_a_recent_dictionary_forgets_what_was_not_asked_for_longest():
    recent: Recent[str, int] = Recent(2)
    recent["a"], recent["b"] = 1, 2
    assert recent.recall("a", int) == 1
    assert recent.recall("c", int) == 0
    assert dict(recent) == {"a": 1, "c": 0}
