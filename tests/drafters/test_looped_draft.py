"""Drafts made in one call are those grown level by level: tokens, slots, chances and what is kept of them."""

from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace

import loop_double
import pytest
from feature_checks import drafter_over
from random_heads import HIDDEN, PROMPTS, VOCABULARY, random_target

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.drafters import draft_model
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.growing_tree import GrowingTree
from foredraft.drafters.growth import FREE, Growth
from foredraft.engine import step
from foredraft.heads import draft_loop
from foredraft.model.native_runtime import extension

pytest.importorskip("foredraft_native")

GREEDY = SamplingParams(max_new_tokens=30)
SAMPLINGS = {
    "greedy": (GREEDY, {}),
    "seeded": (SamplingParams(max_new_tokens=30, temperature=1.0, seed=4), {}),
    "cool": (SamplingParams(max_new_tokens=30, temperature=0.7, seed=5), {}),
    "greedy drafts": (SamplingParams(max_new_tokens=30, temperature=1.0, seed=4), {"draft_sample_method": "greedy"}),
}
KINDS = ("eagle", "eagle3", "mtp", "draft_model")
SHAPES = {
    "chain": {"num_speculative_tokens": 4},
    "tree": {"num_speculative_tokens": 4, "tree_size": 10, "tree_width": 3},
    "wide": {"num_speculative_tokens": 3, "tree_size": 30, "tree_width": 6},
}
UNSURE = 0.2  # a chance that random drafters give some of their tokens


def make_drafter(kind, target, config):
    if kind != "draft_model":
        return drafter_over(target, config, kind)
    model = random_target(path="native").model  # the target's twin
    model.attach(target.pool, "draft")
    return DraftModelDrafter(model, target.pool, context_length=256)


class Watched:
    """Notes what a drafter drafts and what it holds afterwards."""

    def __init__(self, drafter):
        self.drafter, self.name, self.needs = drafter, drafter.name, drafter.needs
        self.close, self.leave, self.resume = drafter.close, drafter.leave, drafter.resume
        self.drafts, self.held = [], []

    def propose(self, tasks):
        trees = self.drafter.propose(tasks)
        self.drafts += [deepcopy(tree) for tree in trees]
        return trees

    def observe(self, observations):
        self.drafter.observe(observations)
        self.held.append([filled for _, filled in sorted(self.drafter.filled.items())])


def watched(kind, sampling, configs, *, prompts=PROMPTS, taken=0):
    """A run of the engine; of `taken` slots in a row one is somebody else's."""
    target = random_target(path="native")
    engine = Engine(target, max_batch=4, speculation=OFF)
    config = configs if isinstance(configs, SpeculationConfig) else configs[0]
    drafter = engine.drafters[config.drafter_key] = Watched(make_drafter(kind, target, config))
    if taken:
        target.pool.used[::taken] = True
        target.pool.free = int((~target.pool.used).sum())
    outputs = engine.generate(prompts, sampling, configs)
    return drafter, [output.token_ids for output in outputs]


def by_levels(monkeypatch):
    """No drafter finds a loop."""
    monkeypatch.setattr("foredraft.heads.native_feature_head.NativeFeatureHead.loop", lambda self, layers: None)
    monkeypatch.setattr(draft_model, "loop_of", lambda model: None)


@pytest.mark.parametrize(("shape", "taken"), [("chain", 0), ("chain", 7), ("tree", 7)])
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_drafts_what_levels_draft(kind, name, shape, taken, monkeypatch):
    sampling, options = SAMPLINGS[name]
    config = SpeculationConfig(method="watched", **SHAPES[shape], **options)
    calls, draft = [], draft_loop.DraftLoop.draft
    monkeypatch.setattr(draft_loop.DraftLoop, "draft", lambda self, *parts: calls.append(1) or draft(self, *parts))
    quick, text = watched(kind, sampling, config, taken=taken)
    assert len(calls) >= 10
    by_levels(monkeypatch)
    slow, wanted = watched(kind, sampling, config, taken=taken)
    assert text == wanted and quick.held == slow.held and len(quick.drafts) == len(slow.drafts)
    for one, other in zip(quick.drafts, slow.drafts, strict=True):
        # A crowded pool gives what comes next, and levels take no more slots than they run.
        unlike = {"chances": None, **({"slots": None} if taken or shape != "chain" else {})}
        assert len(set(one.slots or [])) == len(one)
        assert replace(one, **unlike) == replace(other, **unlike)
        assert one.chances == (other.chances and pytest.approx(other.chances, rel=1e-3, abs=1e-3))
    assert sum(map(len, quick.drafts)) > 100


@pytest.mark.parametrize(
    "options",
    [
        {"draft_confidence_threshold": 0.3},
        {"speculative_token_tree": "[[0], [0, 0]]"},
        {"rejection_sample_method": "standard"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_drafts_go_level_by_level(options, monkeypatch):
    monkeypatch.setattr(draft_loop.DraftLoop, "draft", None)
    config = SpeculationConfig(method="watched", num_speculative_tokens=4, **options)
    drafter, _ = watched("eagle3", SAMPLINGS["seeded"][0], config, prompts=PROMPTS[:2])
    assert sum(map(len, drafter.drafts)) > 20


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (SamplingParams(max_new_tokens=12, temperature=1.0, top_k=4, seed=1), {}),
        (SamplingParams(max_new_tokens=12, frequency_penalty=0.5), {}),
    ],
    ids=["top k", "penalty"],
)
def test_samplers_that_do_more_go_level_by_level(sampling, options, monkeypatch):
    monkeypatch.setattr(draft_loop.DraftLoop, "draft", None)
    config = SpeculationConfig(method="watched", num_speculative_tokens=4, **options)
    drafter, _ = watched("draft_model", sampling, config, prompts=PROMPTS[:2])
    assert sum(map(len, drafter.drafts)) > 10


@pytest.mark.parametrize("kind", KINDS)
def test_chains_and_trees_may_be_asked_for_together(kind, monkeypatch):
    """Requests of one step that share a drafter and want drafts of different shapes, or choose in other ways."""
    chain = SpeculationConfig(method="watched", num_speculative_tokens=4)
    configs = [chain, replace(chain, tree_size=8), chain, replace(chain, draft_confidence_threshold=0.2)] * 2
    samplings = [SAMPLINGS[name][0] for name in ("greedy", "seeded", "cool", "greedy")] * 2
    assert len({config.drafter_key for config in configs}) == 1
    plain = [o.token_ids for o in Engine(random_target(), speculation=OFF).generate(PROMPTS, samplings)]
    together, text = watched(kind, samplings, configs)
    assert text == plain
    by_levels(monkeypatch)
    levels, _ = watched(kind, samplings, configs)
    assert [tree.tokens for tree in together.drafts] == [tree.tokens for tree in levels.drafts]


@pytest.mark.parametrize("tree_size", [0, 12])
@pytest.mark.parametrize("name", ["greedy", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_ends_paths_where_levels_end_them(kind, name, tree_size, monkeypatch):
    row = 0.06 if tree_size else 0.04  # of what a random drafter says of its paths
    whole, growth = step.draft_task, Growth(candour=0.9, row=row, run=2.5 * row)
    monkeypatch.setattr(
        step, "draft_task", lambda work, config: (task := whole(work, config)) and replace(task, growth=growth)
    )
    config = SpeculationConfig(method="watched", num_speculative_tokens=6, tree_size=tree_size)
    quick, text = watched(kind, SAMPLINGS[name][0], config)
    by_levels(monkeypatch)
    slow, wanted = watched(kind, SAMPLINGS[name][0], config)
    assert text == wanted and quick.held == slow.held
    assert [tree.tokens for tree in quick.drafts] == [tree.tokens for tree in slow.drafts]
    assert len({len(tree) for tree in quick.drafts if len(tree)}) > (1 if tree_size else 2)


BLOCKS = (0.0, *[0.05] * 4, *[0.3] * 5, *[0.9] * 20)


@pytest.mark.parametrize("free", [(), (0,), (1, 2)], ids=["all pay", "one is free", "two are free"])
@pytest.mark.parametrize("name", ["greedy", "seeded"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_ends_chains_that_pay_for_rows_together_where_levels_end_them(kind, name, free, monkeypatch):
    whole, paying = step.draft_task, Growth(candour=0.7, run=0.03, onward=0.8, steps=BLOCKS)

    def priced(work, config):
        task = whole(work, config)
        place = next(i for i, prompt in enumerate(PROMPTS) if work.running.request.tokens[: len(prompt)] == prompt)
        return task and replace(task, growth=FREE if place in free else paying)

    monkeypatch.setattr(step, "draft_task", priced)
    config = SpeculationConfig(method="watched", num_speculative_tokens=6)
    quick, text = watched(kind, SAMPLINGS[name][0], config)
    by_levels(monkeypatch)
    slow, wanted = watched(kind, SAMPLINGS[name][0], config)
    assert text == wanted and quick.held == slow.held
    assert [tree.tokens for tree in quick.drafts] == [tree.tokens for tree in slow.drafts]
    assert len({len(tree) for tree in quick.drafts}) > 2


@pytest.mark.parametrize("name", ["greedy", "greedy drafts"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_call_ends_chains_of_which_the_drafter_is_not_sure(kind, name, monkeypatch):
    sampling, options = SAMPLINGS[name]
    config = SpeculationConfig(method="watched", num_speculative_tokens=6, draft_confidence_threshold=UNSURE, **options)
    quick, text = watched(kind, sampling, config)
    with monkeypatch.context() as patch:
        by_levels(patch)
        slow, wanted = watched(kind, sampling, config)
    assert text == wanted and quick.held == slow.held
    assert [tree.tokens for tree in quick.drafts] == [tree.tokens for tree in slow.drafts]
    assert len({len(tree) for tree in quick.drafts if len(tree)}) > 2
    monkeypatch.setattr(GrowingTree, "extend", None)  # no level is scattered over the target's vocabulary
    watched(kind, sampling, config)


@pytest.mark.parametrize("shape", ["chain", "wide"])
@pytest.mark.parametrize("sampling", ["greedy", "seeded", "cool"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loop_is_its_double(kind, sampling, shape, monkeypatch):
    """Every call of the extension, with what the engine gives it, beside the loop in Python."""
    calls, real = [], extension().draft

    def both(program, cache, *parts):
        drafts = real(program, cache, *parts)
        sizes = {"vocabulary": VOCABULARY, "hidden": HIDDEN}
        for got, wanted in zip(drafts, loop_double.draft(program, cache, *parts, **sizes), strict=True):
            tokens, parents, gains, places = got
            assert (tokens, parents, places) == (wanted.tokens, wanted.parents, wanted.places)
            assert gains == pytest.approx(wanted.gains, rel=1e-3, abs=1e-3)
        calls.append(len(drafts))
        return drafts

    monkeypatch.setattr(draft_loop, "extension", lambda: SimpleNamespace(draft=both))
    config = SpeculationConfig(method="watched", **SHAPES[shape])
    watched(kind, SAMPLINGS[sampling][0], config)
    assert len(calls) >= 10 and max(calls) > 1
