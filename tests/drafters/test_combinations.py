"""Combinations draft what their parts draft, and every part is told what it can make use of."""

from dataclasses import replace

import pytest
import torch
from draft_tasks import make_request
from test_draft_model import PROMPTS, CheckedDrafter, model_target

from foredraft import ConfigError, Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.core.speculation_config import OFF
from foredraft.drafters.cascade import WEAK, CascadeDrafter
from foredraft.drafters.combination import Part, make_parts
from foredraft.drafters.drafter import DrafterNeeds, Observation
from foredraft.drafters.merged import UNTOLD, MergedDrafter, merged
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine.scheduler import slots_needed
from foredraft.model.scripted_target import ScriptedTarget

KINDS = {"cascade": CascadeDrafter, "merged": MergedDrafter}
VOCABULARY = 31


def tree(*rows, drafter="a", chances=None, probes=0) -> DraftTree:
    """Nodes as (token, parent)."""
    tokens, parents = [token for token, _ in rows], [parent for _, parent in rows]
    return DraftTree(tokens=tokens, parents=parents, drafters=[drafter] * len(rows), chances=chances, probes=probes)


def paths(drafted: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(drafted.path_tokens(node)) for node in range(len(drafted))]


def counting(history):
    """Each token is the one before plus one."""
    scores = [0.0] * VOCABULARY
    scores[(history[-1] + 1) % VOCABULARY] = 9.0
    return scores


def combination(kind: str, *drafters, pool=None):
    return KINDS[kind]([Part(drafter, drafter.name, None) for drafter in drafters], pool)


def scripted_run(kind: str, *scripts, prompts=((3,),), tokens=12, needs=(), **speculation):
    """An engine over a counting text; its combination's parts and the outputs."""
    config = SpeculationConfig(method=kind, drafters="of the test", **speculation)
    needs = [*needs, *[None] * len(scripts)]
    parts = [
        ScriptedDrafter(script, name=f"part {i}", needs=needs[i]) if not hasattr(script, "propose") else script
        for i, script in enumerate(scripts)
    ]
    target = ScriptedTarget(counting, vocabulary=VOCABULARY)
    engine = Engine(target, speculation=OFF)
    engine.drafters[config.drafter_key] = made = combination(kind, *parts, pool=target.pool)
    outputs = engine.generate([list(prompt) for prompt in prompts], SamplingParams(max_new_tokens=tokens), config)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output.token_ids == [(prompt[-1] + step) % VOCABULARY for step in range(1, tokens + 1)]
    target.pool.check_integrity([])
    assert not made.given_up
    return parts, outputs


def right(count: int, name: str, chance: float | None = None):
    """A script of the next `count` tokens of the counting text."""

    def script(task) -> DraftTree:
        tokens = [(task.request.tokens[-1] + step) % VOCABULARY for step in range(1, count + 1)]
        return DraftTree.chain(tokens, name, chances=None if chance is None else [chance] * count)

    return script


def always(drafted: DraftTree):
    return lambda task: drafted


class TestMerged:
    def test_equal_paths_become_one_and_the_first_name_stays(self):
        one = tree((5, -1), (6, 0), drafter="a", chances=[0.5, 0.5])
        other = tree((5, -1), (7, 0), (8, -1), drafter="b", chances=[0.9, 0.8, 0.1])
        both = merged([one, other], nodes=9)
        assert paths(both) == [(5,), (5, 6), (5, 7), (8,)]
        assert both.drafters == ["a", "a", "b", "b"] and both.chances == [0.9, 0.5, 0.8, 0.1]
        assert both.laws is None and both.slots is None

    def test_the_likeliest_paths_stay_under_the_budget(self):
        one = tree((5, -1), (6, 0), (7, 1), chances=[0.5, 0.9, 0.9])  # path chances 0.5, 0.45, 0.405
        other = tree((8, -1), (9, 0), (4, -1), drafter="b", chances=[0.6, 0.5, 0.42])  # 0.6, 0.3, 0.42
        assert paths(merged([one, other], nodes=4)) == [(5,), (5, 6), (8,), (4,)]
        assert paths(merged([one, other], nodes=1)) == [(8,)]
        assert len(merged([one, other], nodes=99)) == 6

    def test_nodes_without_chances_go_by_depth_and_rank(self):
        silent = tree((5, -1), (6, -1), (7, 0), drafter="silent")
        told = tree((8, -1), (9, -1), (4, -1), chances=[UNTOLD + 0.01, UNTOLD**2 + 0.01, UNTOLD * (1 - UNTOLD) + 0.01])
        both = [paths(merged([silent, told], nodes=count)) for count in range(1, 7)]
        assert [set(now) for now in both] == [
            set([(8,), (5,), (9,), (5, 7), (4,), (6,)][:count]) for count in range(1, 7)
        ]
        assert merged([silent, told], nodes=9).chances is None

    def test_a_chain_is_the_path_that_expects_most(self):
        long = tree((5, -1), (6, 0), (7, 1), chances=[0.5, 0.9, 0.9])
        short = tree((8, -1), drafter="b", chances=[0.9])
        assert paths(merged([long, short], nodes=5, chain=True)) == [(5,), (5, 6), (5, 6, 7)]
        assert paths(merged([long, short], nodes=1, chain=True)) == [(8,)]
        assert merged([long, short], nodes=5, chain=True).is_chain
        assert paths(merged([DraftTree(), DraftTree()], nodes=5, chain=True)) == []

    def test_probes_stay_behind_all_guesses(self):
        probing = tree((5, -1), (6, -1), (6, -1), (7, 2), (1, 0), probes=4)
        other = tree((8, -1), (9, 0), drafter="b")
        both = merged([probing, other], nodes=2)
        assert paths(both.guesses) == [(5,), (8,)] and both.probes == 4
        assert paths(both)[2:] == [(6,), (6,), (6, 7), (5, 1)]
        dropped = merged([other, replace(probing, chances=[0.1, 0, 0, 0, 0])], nodes=1)
        assert paths(dropped) == [(8,), (6,), (6,), (6, 7)]  # a probe goes with the guess above it

    def test_every_tree_is_drafted_within_one_budget(self):
        wrong = always(tree((0, -1), (0, 0), (0, 1), (0, 2), (30, -1), (30, 4), (29, -1)))
        parts, [output] = scripted_run(
            "merged", wrong, right(9, "right", 0.9), tree_size=7, num_speculative_tokens=4, tokens=13
        )
        statistics = output.statistics
        assert statistics.drafted == 7 + 7 + 7 and statistics.accepted_at == [3, 3, 2, 2]
        assert {task.nodes for task in parts[0].tasks} == {7} and {task.depth for task in parts[1].tasks} == {4, 2}

    def test_sampled_drafts_are_asked_for_as_greedy_ones(self):
        parts, _ = scripted_run("merged", [], [], tree_size=4, rejection_sample_method="tree")
        assert {task.speculation.draft_sampling for part in parts for task in part.tasks} == {"greedy"}
        parts, _ = scripted_run("merged", [], [], tree_size=4)
        assert {task.speculation.draft_sampling for part in parts for task in part.tasks} == {"coupled"}


class TestCascade:
    def test_who_has_no_draft_is_followed_by_the_next_request_by_request(self):
        def first(task) -> DraftTree:
            return right(2, "part 0")(task) if task.request.prompt == [3] else DraftTree()

        parts, outputs = scripted_run("cascade", first, right(3, "part 1"), prompts=[(3,), (20,)])
        assert {task.request.prompt[0] for task in parts[1].tasks} == {20}
        assert [set(output.sources) - {None} for output in outputs] == [{"part 0"}, {"part 1"}]
        assert {task.speculation.method for task in parts[1].tasks} == {"part 1"}
        assert {task.speculation.drafters for task in parts[0].tasks} == {""}

    @pytest.mark.parametrize(("chance", "asked"), [(WEAK - 0.1, True), (WEAK + 0.1, False), (None, False)])
    def test_a_weak_draft_is_followed_by_the_next(self, chance, asked):
        parts, [output] = scripted_run("cascade", right(1, "part 0", chance), right(3, "part 1"))
        assert bool(parts[1].tasks) is asked
        assert set(output.sources) - {None} == {"part 1" if asked else "part 0"}

    def test_long_drafts_are_not_weak_for_small_chances_alone(self):
        parts, _ = scripted_run("cascade", right(4, "part 0", 0.4), right(3, "part 1"), tokens=27)
        assert len(parts[1].tasks) == 1  # near the end, where the draft is cut to its first token

    def test_a_weak_draft_stands_where_nobody_has_a_better_one(self):
        parts, [output] = scripted_run("cascade", right(2, "part 0", 0.1), [], [])
        assert parts[2].tasks and set(output.sources) - {None} == {"part 0"}

    def test_a_sampled_draft_stands_whatever_was_drawn(self):
        law = torch.full((VOCABULARY,), 1 / VOCABULARY, dtype=torch.float64)
        sampled = always(DraftTree.chain([0], "part 0", laws=[law, None], chances=[0.001]))
        parts, [output] = scripted_run(
            "cascade", sampled, right(3, "part 1"), rejection_sample_method="standard", tokens=4
        )
        assert not parts[1].tasks and output.statistics.drafted > 0

    def test_probes_alone_are_no_draft(self):
        probing = always(tree((9, -1), drafter="part 0", probes=1))
        parts, [output] = scripted_run(
            "cascade", probing, right(2, "part 1"), needs=[DrafterNeeds(scratch=1, successors=1)]
        )
        assert parts[1].tasks and set(output.sources) - {None} == {"part 1"}


class Slotted(ScriptedDrafter):
    """Gives its nodes slots, and takes two more while it drafts; it finds the table as the step has left it."""

    def __init__(self, script, pool, **fields):
        super().__init__(script, needs=DrafterNeeds(scratch=2), **fields)
        self.pool = pool

    def draft(self, task):
        assert len(task.table.tail) == task.request.pending
        drafted = super().draft(task)
        slots = self.pool.take(task.table, len(drafted) + 2)
        return replace(drafted, slots=slots[2:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tree_size", [0, 6])
def test_a_request_takes_no_more_slots_than_it_was_admitted_for(kind, tree_size):
    """A pool of just as many slots as the scheduler counts serves a request whose parts all take some."""
    config = SpeculationConfig(method=kind, drafters="of the test", tree_size=tree_size, num_speculative_tokens=6)
    tokens, needed = 30, None

    class Noted(Engine):
        def prepare(self, *arguments):
            nonlocal needed
            running = super().prepare(*arguments)
            needed = slots_needed(running)
            return running

    for slots in (4096, None):
        target = ScriptedTarget(counting, vocabulary=VOCABULARY, slots=slots or needed)
        wrong = always(DraftTree.chain([0] * 6, "wrong", chances=[0.05] * 6))
        parts = [
            Slotted(script, target.pool, name=name) for name, script in (("wrong", wrong), ("right", right(6, "right")))
        ]
        engine = Noted(target)
        engine.drafters[config.drafter_key] = made = combination(kind, *parts, pool=target.pool)
        [output] = engine.generate([[3]], SamplingParams(max_new_tokens=tokens), config)
        assert output.statistics.accepted > 20 and not made.given_up
        target.pool.check_integrity([])


class TestObservations:
    def observed(self, kind, seen, *needs, given_up=()):
        parts = [ScriptedDrafter([], name=f"part {i}", needs=need) for i, need in enumerate(needs)]
        made = combination(kind, *parts)
        if given_up:
            made.given_up[seen.request.id] = set(given_up)
        made.observe([seen])
        return made, [part.observations for part in parts]

    def seen(self, **fields) -> Observation:
        plain = {"table": None, "first": 4, "tree": DraftTree(), "verdict": None, "committed": []}
        return Observation(request=make_request([1, 2]), **plain | fields)

    def test_each_part_gets_its_own_features_in_its_own_order(self):
        features = torch.arange(12.0).reshape(2, 6).chunk(3, dim=-1)  # boundaries 2, 5 and 7, two numbers each
        wanted = [(7, 2), (), (2, 5, 7), (5,)]
        needs = [DrafterNeeds(features=boundaries) for boundaries in wanted]
        made, told = self.observed("merged", self.seen(features=features), *needs)
        assert made.needs.features == (2, 5, 7)
        assert torch.cat(told[0][0].features, dim=-1).tolist() == [[4, 5, 0, 1], [10, 11, 6, 7]]
        assert told[1] == []  # a mere prompt chunk is no news to those that need no features
        assert told[2][0].features == features
        assert [part.tolist() for part in told[3][0].features] == [[[2, 3], [8, 9]]]

    def test_each_part_gets_as_many_successors_as_it_wants(self):
        drafted = tree((5, -1), (6, 0))
        rows = [[5, 1, 2], [6, 3, 4], [7, 8, 9]]
        seen = self.seen(tree=drafted, verdict=Verdict([0, 1], 7), committed=[5, 6, 7], successors=rows)
        _, told = self.observed("cascade", seen, DrafterNeeds(successors=3), DrafterNeeds(successors=1), DrafterNeeds())
        assert [part[0].successors for part in told] == [rows, [[5], [6], [7]], None]
        assert all(part[0].tree is drafted and part[0].path == [0, 1] for part in told)

    @pytest.mark.parametrize("path", [[0, 1], []])
    def test_a_part_whose_slots_were_given_back_sees_a_step_without_a_draft(self, path):
        drafted = tree((5, -1), (6, 0))
        verdict = Verdict(path, 7 if path else 5)
        seen = self.seen(tree=drafted, verdict=verdict, successors=[[1], [2], [3]], features=(torch.ones(3, 2),))
        needs = DrafterNeeds(successors=1, features=(1,))
        made, [[lost], [other]] = self.observed("merged", seen, needs, needs, given_up=[0])
        assert len(lost.tree) == 0 and lost.verdict == Verdict([], 5) and lost.successors == [[1]]
        assert len(lost.features[0]) == 3 and other.tree is drafted and other.verdict is verdict
        assert not made.given_up


def test_a_combination_needs_what_its_parts_need():
    one = DrafterNeeds(samples=True, features=(3, 1), scratch=5, fixed_trees=True, successors=2, instant=True)
    one = replace(one, deepest=3)
    other = DrafterNeeds(features=(1, 4), scratch=7, successors=1, stepwise=True, deepest=8)
    needs = {kind: combination(kind, *(ScriptedDrafter([], needs=n) for n in (one, other))).needs for kind in KINDS}
    common = DrafterNeeds(features=(1, 3, 4), successors=2, stepwise=True, deepest=8, drafters=True)
    assert needs["cascade"] == replace(common, scratch=7, fixed_trees=True)
    assert needs["merged"] == replace(common, scratch=12)
    same = [ScriptedDrafter([], needs=replace(one, deepest=None)) for _ in range(2)]
    assert combination("cascade", *same).needs == replace(one, features=(1, 3), deepest=None, drafters=True)


class Rare:
    """Asks another drafter in two of three steps only; in between somebody else drafts, right or wrong."""

    def __init__(self, drafter):
        self.drafter, self.name, self.needs = drafter, drafter.name, drafter.needs
        self.parts = drafter.parts
        self.steps: dict[int, int] = {}

    def propose(self, tasks):
        drafts, asked = {}, []
        for task in tasks:
            step = self.steps[task.request.id] = self.steps.get(task.request.id, -1) + 1
            if step % 3 == 2:
                drafts[task.request.id] = DraftTree.chain(task.request.tokens[-task.depth :], "other")
            else:
                asked.append(task)
        for task, drafted in zip(asked, self.drafter.propose(asked) if asked else [], strict=True):
            drafts[task.request.id] = drafted
        return [drafts[task.request.id] for task in tasks]

    def observe(self, observations):
        self.drafter.observe(observations)

    def close(self, request):
        self.steps.pop(request.id, None)
        self.drafter.close(request)


@pytest.mark.parametrize("rare", [False, True], ids=["every step", "now and then"])
@pytest.mark.parametrize(
    ("seed", "shape"),
    [(0, {}), (1, {"tree_size": 8, "num_speculative_tokens": 3})],
    ids=["perfect drafter's chain", "poor drafter's tree"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_model_in_company_drafts_its_own(kind, seed, shape, rare):
    """Every draft is compared with the draft model run alone on the whole text, without any cache."""
    config = SpeculationConfig(method=kind, drafters="of the test", prompt_lookup_min=1, **shape)
    target = model_target()
    engine = Engine(target, max_batch=4, speculation=OFF)
    drafters = [NgramDrafter(), CheckedDrafter(target.pool, seed)]
    made = combination(kind, *(drafters if kind == "cascade" else drafters[::-1]), pool=target.pool)
    engine.drafters[config.drafter_key] = Rare(made) if rare else made
    sampling = SamplingParams(max_new_tokens=24)
    outputs = engine.generate(PROMPTS, sampling, config)
    plain = Engine(model_target(), speculation=OFF).generate(PROMPTS, sampling)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert drafters[1].checked > 20 and sum(output.statistics.accepted for output in outputs) > 0
    assert not drafters[1].filled and not drafters[1].ran and not made.given_up
    target.pool.check_integrity([])


QUESTIONS = [
    "Write this form as JSON.\n\nname: Ada Berg\nage: 30\ncity: Oslo",
    "Passage:\nThe king had three sons. The youngest was kind to birds. He left home.\n\nRepeat the passage.",
    "A box holds 12 pens. How many pens do 5 boxes hold?",
    "Write a Python function that reverses a list.",
]
TREE = {"tree_size": 16, "num_speculative_tokens": 5}
CONFIGS = {
    "cascade of ngram and medusa": {"method": "cascade", "drafters": "ngram, medusa", "num_speculative_tokens": 4},
    "cascade of suffix and dflash": {"method": "cascade", "drafters": "suffix, dflash", **TREE},
    "cascade of three": {"method": "cascade", "drafters": "suffix,eagle3,draft_model:tiny-draft", **TREE},
    "cascade with a fixed tree": {
        "method": "cascade",
        "drafters": "suffix, medusa",
        "speculative_token_tree": "[[0], [1], [0, 0], [0, 1], [0, 0, 0]]",
    },
    "merged suffix and medusa": {"method": "merged", "drafters": "suffix, medusa", **TREE},
    "merged ngram and draft model": {"method": "merged", "drafters": "ngram, draft_model:tiny-draft", **TREE},
    "merged medusa and dflash": {"method": "merged", "drafters": "medusa, dflash", **TREE},
    "merged draft model and dflash": {"method": "merged", "drafters": "draft_model:tiny-draft, dflash", **TREE},
    "merged chains": {"method": "merged", "drafters": "suffix, dflash, eagle3"},
}
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=20),
    "seeded": SamplingParams(max_new_tokens=20, temperature=1.0, seed=7),
}


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=4096, speculation=OFF)


@pytest.fixture(scope="module")
def chats(tiny) -> list[list[int]]:
    return [tiny.chat([{"role": "user", "content": question}]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def plain(tiny, chats) -> dict[str, list[list[int]]]:
    return {
        name: [tiny.generate([chat], sampling)[0].token_ids for chat in chats] for name, sampling in SAMPLINGS.items()
    }


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_combination_changes_no_token(tiny, chats, plain, name, sampling):
    config = SpeculationConfig.from_dict(CONFIGS[name])
    together = tiny.generate(chats, SAMPLINGS[sampling], config)
    [alone] = tiny.generate(chats[:1], SAMPLINGS[sampling], config)
    assert [output.token_ids for output in together] == plain[sampling]
    assert alone.token_ids == plain[sampling][0] and alone.statistics.accepted > 0
    drafters = {name for output in together for name in output.sources} - {None}
    assert drafters <= {word.strip().partition(":")[0] for word in config.drafters.split(",")} and drafters
    tiny.target.pool.check_integrity([])


RARELY = ["cascade of ngram and medusa", "merged ngram and draft model", "merged medusa and dflash"]


@pytest.mark.parametrize("name", RARELY)
def test_steps_that_others_drafted_for_change_no_token(tiny, chats, plain, name):
    config = SpeculationConfig.from_dict(CONFIGS[name])
    made = tiny.drafter_for(config)
    rare = replace(config, suffix_decoding_max_cached_requests=7)  # a key of its own
    tiny.drafters[rare.drafter_key] = Rare(made)
    outputs = tiny.generate(chats, SAMPLINGS["seeded"], rare)
    assert [output.token_ids for output in outputs] == plain["seeded"]
    assert any(set(output.sources) & {"medusa", "dflash", "draft_model"} for output in outputs)
    tiny.target.pool.check_integrity([])


def test_sampled_drafts_pass_through_a_cascade(tiny, chats):
    """Under a rule that weighs laws: it would fail on a draft whose law is missing or not over the vocabulary."""
    config = SpeculationConfig(
        method="cascade", drafters="suffix, medusa", rejection_sample_method="block", num_speculative_tokens=4
    )
    outputs = tiny.generate(chats[:2], SAMPLINGS["seeded"], config)
    assert sum(output.statistics.accepted_by.get("medusa", 0) for output in outputs) > 0
    merging = SpeculationConfig(method="merged", drafters="suffix, medusa", rejection_sample_method="traversal", **TREE)
    outputs = tiny.generate(chats[:2], SAMPLINGS["seeded"], merging)
    assert sum(output.statistics.accepted for output in outputs) > 0
    tiny.target.pool.check_integrity([])


WRONG = {
    "": "needs two or more",
    "suffix": "needs two or more",
    "suffix,,ngram": "needs two or more",
    "suffix, sufix": "'sufix' is not known; did you mean 'suffix'",
    "suffix, auto": "'auto' chooses among others",
    "suffix, merged": "not another combination such as 'merged'",
    "suffix, cascade:x": "not another combination such as 'cascade'",
    "suffix, ngram, suffix": "names one twice",
    "suffix, draft_model": "draft_model needs a draft model",
    "suffix, draft_model:tiny-draft": "no loaded model",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("listed", WRONG)
def test_a_list_that_makes_no_combination_is_refused(kind, listed):
    target = ScriptedTarget(counting, vocabulary=VOCABULARY)
    with pytest.raises(ConfigError, match=WRONG[listed]) as error:
        Engine(target, speculation=SpeculationConfig(method=kind, drafters=listed))
    assert "\n" not in str(error.value)


def test_keys_a_combination_would_pass_over_are_refused():
    target = ScriptedTarget(counting, vocabulary=VOCABULARY)
    with pytest.raises(ConfigError, match="takes models beside its drafters"):
        make_parts(SpeculationConfig(method="merged", drafters="suffix, ngram", model="tiny-draft"), target)
    engine = Engine(target, speculation=OFF)
    for wrong in ({"speculative_token_tree": "[[0]]"}, {"draft_sample_method": "probabilistic"}):
        config = SpeculationConfig(
            method="merged", drafters="suffix, ngram", rejection_sample_method="tree", tree_size=4, **wrong
        )
        with pytest.raises(ConfigError, match="method merged"):
            engine.generate([[3]], SamplingParams(max_new_tokens=4), config)
