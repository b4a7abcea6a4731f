"""Feature-level drafters draft what their head says of the whole text, whatever was accepted before."""

from dataclasses import replace
from itertools import count

import pytest
import torch
from feature_checks import NEAR, drafter_over, make_head, stored_by, whole_text
from random_heads import CONTEXT, PATHS, PROMPTS, VOCABULARY, random_target
from tree_paths import paths_of

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.core.speculation_config import OFF
from foredraft.core.static_tree import token_tree
from foredraft.drafters import feature_drafter
from foredraft.drafters.feature_drafter import FeatureDrafter
from foredraft.drafters.level_ranking import scattered
from foredraft.heads.native_feature_head import NativeFeatureHead
from foredraft.verification.verifier import Rule, rules

KINDS = ("eagle", "eagle3", "mtp")
SHAPES = {
    "chain": {"num_speculative_tokens": 3},
    "one token": {"num_speculative_tokens": 1},
    "tree": {"num_speculative_tokens": 3, "tree_size": 8, "tree_width": 3},
    "wide tree": {"num_speculative_tokens": 2, "tree_size": 30, "tree_width": 8},
    "narrow tree": {"num_speculative_tokens": 4, "tree_size": 3, "tree_width": 2},
    "fixed tree": {"speculative_token_tree": "[[0], [1], [2], [0, 0], [0, 2], [1, 0], [0, 0, 1]]", "tree_size": 9},
}
TOKENS = 12


class Checks:
    """A drafter whose every draft, feature and cached key is compared with the whole text's.

    It is asked in every `asked`-th step; in the others somebody else drafts.
    """

    def __init__(self, drafter: FeatureDrafter, kind: str, config: SpeculationConfig, asked: int = 1):
        self.drafter, self.whole, self.config = drafter, whole_text(kind), config
        self.name, self.needs, self.close = drafter.name, drafter.needs, drafter.close
        self.leave, self.resume = drafter.leave, drafter.resume
        self.drafts = self.kept = 0
        self.turns, self.asked = count(1), asked

    def propose(self, tasks):
        if next(self.turns) % self.asked:
            return [DraftTree.from_paths([[3, 4][: task.depth], [5]], "other", task.nodes) for task in tasks]
        trees = self.drafter.propose(tasks)
        for task, tree in zip(tasks, trees, strict=True):
            if len(tree):
                self.check_cache(task.request.tokens, task.table)
                self.check_tree(task, tree)
        return trees

    def check_cache(self, tokens, table):
        wanted, got = self.whole.stored(tokens), stored_by(self.drafter, table, len(tokens) - 1)
        assert wanted.keys() == got.keys()
        for layer in wanted:
            torch.testing.assert_close(got[layer], wanted[layer], **NEAR)

    def check_tree(self, task, tree):
        self.drafts += 1
        paths = [tuple(tree.path_tokens(node)) for node in range(len(tree))]
        assert len(set(paths)) == len(paths) and all(path[:-1] in ((), *paths[:at]) for at, path in enumerate(paths))
        assert len(set(tree.slots)) == len(tree) and set(tree.slots) <= set(task.table.tail)
        assert set(paths) == self.wanted(task)

    def wanted(self, task):
        config, tokens = self.config, task.request.tokens
        if config.speculative_token_tree is not None:
            ranks = paths_of(token_tree(config.speculative_token_tree).cut(nodes=task.nodes, depth=task.depth))
            return self.whole.ranked(tokens, ranks)
        if not config.tree_size:
            return self.whole.chain(tokens, task.depth)
        return self.whole.dynamic(tokens, nodes=task.nodes, depth=task.depth, width=config.tree_width)

    def observe(self, observations):
        self.drafter.observe(observations)
        for seen in observations:
            self.kept += len(seen.path)
            if not seen.request.finished:
                known = self.drafter.features.known[seen.request.id]
                assert known == seen.first + len(seen.features[0]) == len(seen.table.slots)
                wanted = self.whole.captured(seen.request.tokens[:known])
                steps = self.drafter.features.waiting[seen.request.id]
                waiting = torch.cat([torch.cat(step, dim=-1) for step in steps])
                filled = self.drafter.filled.get(seen.request.id, 0)
                torch.testing.assert_close(waiting, wanted[filled:], **NEAR)


@pytest.fixture(params=["none", "some", "all"])
def accepting(request, monkeypatch):
    """Accept by turns: no draft at all, paths of every length, whole paths. What is written does not matter here."""
    turns = count()

    def accept(tree, law, draws):
        path, row, turn = [], 0, next(turns)
        limit = {"none": 0, "some": turn % 4, "all": 64}[request.param]
        while tree.children[row] and len(path) < limit:
            path.append(tree.children[row][turn % len(tree.children[row])])
            row = path[-1] + 1
        return Verdict(path, draws.token(row))

    monkeypatch.setitem(rules, "match", Rule(name="match", accept=accept, needs_laws=False))
    return request.param


@pytest.fixture
def small_steps(monkeypatch):
    """Prompts in chunks, and catching up in several stretches."""
    monkeypatch.setitem(Engine.__init__.__kwdefaults__, "step_rows", 11)
    monkeypatch.setattr(feature_drafter, "CATCH_UP_ROWS", 6)


def run(kind, config, drafter_of=drafter_over, prompts=PROMPTS[:4], sampling=None, max_batch=3, asked=1, path="torch"):
    target = random_target(path=path)
    engine = Engine(target, max_batch=max_batch, speculation=OFF)
    checks = Checks(drafter_of(target, config, kind), kind, config, asked)
    engine.drafters[config.drafter_key] = checks
    outputs = engine.generate(prompts, sampling or SamplingParams(max_new_tokens=TOKENS), config)
    target.pool.check_integrity([])
    assert not checks.drafter.filled and not checks.drafter.features.known and not checks.drafter.features.waiting
    return outputs, checks


CASES = [(kind, shape) for kind in KINDS for shape in ("chain", "tree", "fixed tree")]
CASES += [("eagle3", shape) for shape in ("one token", "wide tree", "narrow tree")]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("kind", "shape"), CASES)
def test_drafts_and_caches_are_those_of_the_whole_text(kind, shape, accepting, small_steps, path):
    _, checks = run(kind, SpeculationConfig(method="feature", **SHAPES[shape]), path=path)
    assert isinstance(checks.drafter.head, NativeFeatureHead) == (path == "native") == bool(checks.drafter.loop)
    assert checks.drafts >= 8 and (checks.kept > 0) == (accepting != "none")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("asked", [2, 5])
@pytest.mark.parametrize(("kind", "shape"), [("eagle", "tree"), ("eagle3", "chain"), ("mtp", "fixed tree")])
def test_a_drafter_catches_up_what_others_drafted(kind, shape, asked, accepting, small_steps, path):
    """Whatever became of their drafts, and however long it was not asked."""
    config = SpeculationConfig(method="feature", **SHAPES[shape])
    _, checks = run(kind, config, sampling=SamplingParams(max_new_tokens=24), asked=asked, path=path)
    assert checks.drafts >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_not_asked_computes_nothing(kind, monkeypatch):
    monkeypatch.setattr(type(make_head(kind, random_target().model.module)), "fuse", None)
    _, checks = run(kind, SpeculationConfig(method="feature"), asked=10**6)
    assert checks.drafts == 0


def test_samples_of_a_prompt_share_nothing(accepting):
    sampling = SamplingParams(
        max_new_tokens=8, n=3, temperature=1.0, seed=1, top_k=1
    )  # sampled, yet the drafts are not
    config = SpeculationConfig(method="feature", num_speculative_tokens=2, draft_sample_method="greedy")
    outputs, checks = run("eagle3", config, prompts=PROMPTS[:1], sampling=sampling)
    assert len(outputs) == 3 and checks.drafts >= 6


def test_a_request_closed_midway_leaves_nothing_behind():
    target, config = random_target(), SpeculationConfig(method="feature", num_speculative_tokens=2)
    engine = Engine(target, max_batch=2, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter = drafter_over(target, config, "eagle3")
    events = engine.stream(PROMPTS[:3], SamplingParams(max_new_tokens=30), config)
    [next(events) for _ in range(5)]
    assert drafter.filled and drafter.features.known
    events.close()
    assert not drafter.filled and not drafter.features.known
    target.pool.check_integrity([])
    outputs = engine.generate(PROMPTS[:3], SamplingParams(max_new_tokens=TOKENS), config)
    assert [o.token_ids for o in outputs] == plain_tokens(PROMPTS[:3])


def plain_tokens(prompts):
    return [
        o.token_ids
        for o in Engine(random_target(), speculation=OFF).generate(prompts, SamplingParams(max_new_tokens=TOKENS))
    ]


def test_two_drafters_may_share_a_target():
    target, config = random_target(), SpeculationConfig(method="feature", num_speculative_tokens=2)
    engine = Engine(target, speculation=OFF)
    for kind in KINDS:
        engine.drafters[config.drafter_key] = drafter_over(target, config, kind)
        outputs = engine.generate(PROMPTS[:3], SamplingParams(max_new_tokens=TOKENS), config)
        assert [o.token_ids for o in outputs] == plain_tokens(PROMPTS[:3])


def test_all_the_context_may_be_drafted():
    """The longest text the target can hold, its last drafts cut to what may still be written."""
    target, config = random_target(), SpeculationConfig(method="feature", num_speculative_tokens=4, tree_size=6)
    engine = Engine(target, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter_over(target, config, "mtp")
    [output] = engine.generate([list(range(40))], SamplingParams(max_new_tokens=CONTEXT), config)
    assert len(output.token_ids) == CONTEXT - 40


@pytest.mark.parametrize("kind", KINDS)
def test_ties_leave_no_node_without_its_parent(kind):
    """A head so sure that its log-probabilities are 0: every path is worth as much as its beginnings."""
    target = random_target()
    config = SpeculationConfig(method="feature", num_speculative_tokens=5, tree_size=3, tree_width=2)
    drafter = drafter_over(target, config, kind)
    logits = drafter.head.logits
    drafter.head.logits = lambda out: 1e4 * logits(out)
    engine = Engine(target, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter
    trees, ask = [], drafter.propose
    drafter.propose = lambda tasks: [trees.append(tree) or tree for tree in ask(tasks)]
    outputs = engine.generate(PROMPTS[:3], SamplingParams(max_new_tokens=TOKENS), config)
    assert [o.token_ids for o in outputs] == plain_tokens(PROMPTS[:3])
    grown = [tree for tree in trees if len(tree)]
    assert grown and all(parent < node for tree in grown for node, parent in enumerate(tree.parents))
    assert all(tree.is_chain for tree in grown if max(tree.depths) == 3)


class ShiftedPairs(FeatureDrafter):
    """Pairs F_i with token i instead of the one after it."""

    def pending(self, task, *, last):
        rows, hidden = super().pending(task, last=last)
        start = self.filled.get(task.request.id, 0)
        return replace(rows, tokens=task.request.tokens[start : start + len(rows.tokens)]), hidden


class StaleKeys(FeatureDrafter):
    """Keeps the keys of accepted drafts, which were made from its own guesses of the features."""

    def observe(self, observations):
        super().observe(observations)
        for seen in observations:
            if seen.request.id in self.filled and len(seen.path) > 1 and not seen.request.finished:
                self.filled[seen.request.id] += len(seen.path) - 1
                self.features.take(seen.request, len(seen.path) - 1)


class LateFeatures(FeatureDrafter):
    """Drafts from the features of the position before the last one known."""

    def begin(self, rows):
        *said, hidden = super().begin(rows)
        return *said, torch.cat([hidden[:1], hidden[:-1]])


WRONG = {
    "pairs one off": (ShiftedPairs, "chain"),
    "stale draft keys": (StaleKeys, "chain"),
    "features one late": (LateFeatures, "tree"),
}


def of_class(wrong):
    def make(target, config, kind):
        drafter = drafter_over(target, config, kind)
        drafter.__class__ = wrong
        return drafter

    return make


@pytest.mark.parametrize("accepting", ["all"], indirect=True)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_drafter_is_found_out(name, accepting):
    wrong, shape = WRONG[name]
    config = SpeculationConfig(method="feature", **SHAPES[shape])
    with pytest.raises(AssertionError):
        run("eagle3", config, of_class(wrong), prompts=PROMPTS[:1])


def other_rope(target, config, kind):
    return drafter_over(target, config, kind, theta=1e6)


def other_feedback(target, config, kind):
    drafter = drafter_over(target, config, kind)
    drafter.head.fed_back = lambda out: drafter.head.norm(out)
    return drafter


@pytest.mark.parametrize("wrong", [other_rope, other_feedback])
def test_a_wrong_head_is_found_out(wrong):
    with pytest.raises(AssertionError):
        run("eagle3", SpeculationConfig(method="feature", num_speculative_tokens=3), wrong, prompts=PROMPTS[2:3])


def test_a_reduced_vocabulary_drafts_its_own_ids_only():
    target, config = random_target(), SpeculationConfig(method="feature", num_speculative_tokens=4, tree_size=20)
    drafter = drafter_over(target, config, "eagle3")
    wide = scattered(torch.arange(30.0)[None], drafter.target_ids, VOCABULARY)
    assert wide.shape == (1, VOCABULARY) and wide[0, 2::2].tolist() == list(range(30))
    assert torch.isinf(wide[0, 1::2]).all() and torch.isinf(wide[0, 0])
    engine = Engine(target, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter
    seen, ask = [], drafter.propose
    drafter.propose = lambda tasks: [seen.append(tree) or tree for tree in ask(tasks)]
    engine.generate(PROMPTS[:2], SamplingParams(max_new_tokens=TOKENS), config)
    drafted = [token for tree in seen for token in tree.tokens]
    assert drafted and all(token % 2 == 0 and token > 0 for token in drafted)


@pytest.mark.parametrize("rule", ["match", "standard", "block", "tree", "traversal"])
def test_nothing_is_drafted_where_every_guess_is_forbidden(rule):
    """Only odd tokens may be written; the head guesses even ones."""
    target, config = random_target(), SpeculationConfig(method="feature", rejection_sample_method=rule)
    engine = Engine(target, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter_over(target, config, "eagle3")
    sampling = SamplingParams(max_new_tokens=6, temperature=1.0, seed=2, allowed_token_ids=(1, 3, 5))
    [output] = engine.generate([PROMPTS[0]], sampling, config)
    assert output.statistics.drafted == 0 and set(output.token_ids) <= {1, 3, 5}


def test_heads_are_the_same_on_both_sides():
    module = random_target().model.module
    for kind in KINDS:
        ours, theirs = make_head(kind, module).state_dict(), whole_text(kind).head.state_dict()
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
