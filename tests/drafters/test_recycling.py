from dataclasses import replace

import pytest
from draft_tasks import make_request, task_for
from plain_texts import plain_texts

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import Observation, make_drafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.rank_chances import FIRST, MEMORY, PRIOR_WEIGHT, RankChances
from foredraft.drafters.recycling import REPLAN, RecyclingDrafter
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 20


def make_recycling_drafter(rows=None, *, candidates=3):
    drafter = RecyclingDrafter(candidates=candidates)
    drafter.table.update(rows or {})
    return drafter


def draft(drafter, root, *, nodes=64, depth=64, **speculation):
    [tree] = drafter.propose([task_for(make_request([root], **speculation), nodes=nodes, depth=depth)])
    return tree


def paths_of(tree):
    return [tuple(tree.path_tokens(node)) for node in range(len(tree))]


def seen(tokens, *, committed, tree=None, path=(), token=None, successors):
    """What a drafter is told after a step that wrote the last `committed` of `tokens`."""
    return Observation(
        request=make_request(tokens),
        table=None,
        first=0,
        tree=tree or DraftTree(),
        verdict=Verdict(list(path), tokens[-1] if token is None else token),
        committed=tokens[-committed:],
        successors=successors,
    )


def test_empty_table_drafts_nothing():
    for options in ({}, {"tree_size": 8}, {"speculative_token_tree": "[[0], [1], [0, 0]]"}):
        assert len(draft(make_recycling_drafter(), 1, **options)) == 0


def test_chain_takes_the_likeliest_successors():
    drafter = make_recycling_drafter({1: [2, 9, 8], 2: [3, 9, 8], 3: [4, 9, 8]})
    tree = draft(drafter, 1)
    assert tree.tokens == [2, 3, 4]
    assert tree.is_chain
    assert tree.drafters == ["recycling"] * 3
    assert draft(drafter, 1, depth=2, nodes=2).tokens == [2, 3]


def test_fixed_tree_takes_successors_by_rank():
    drafter = make_recycling_drafter({1: [2, 3, 4], 2: [5, 6, 7], 3: [8, 9, 10]})
    shape = "[[0], [1], [2], [0, 0], [0, 2], [1, 1]]"
    tree = draft(drafter, 1, speculative_token_tree=shape)
    assert paths_of(tree) == [(2,), (3,), (4,), (2, 5), (2, 7), (3, 9)]
    assert paths_of(draft(drafter, 1, speculative_token_tree=shape, nodes=4)) == [(2,), (3,), (4,), (2, 5)]
    assert paths_of(draft(drafter, 1, speculative_token_tree=shape, depth=1)) == [(2,), (3,), (4,)]


def test_fixed_tree_passes_over_ranks_the_table_has_not():
    drafter = make_recycling_drafter({1: [2, 3], 2: [5, 6]}, candidates=2)
    assert paths_of(draft(drafter, 1, speculative_token_tree="[[0], [5], [0, 1], [5, 0]]")) == [(2,), (2, 6)]


def test_what_hangs_below_an_unknown_token_goes_with_it():
    drafter = make_recycling_drafter({1: [2, 3], 3: [4]})
    tree = draft(drafter, 1, speculative_token_tree="[[0], [1], [2], [0, 0], [0, 0, 0], [1, 0], [2, 0], [1, 0, 1]]")
    assert paths_of(tree) == [(2,), (3,), (3, 4)]


@pytest.mark.parametrize(("nodes", "depth", "width"), [(12, 3, 3), (5, 9, 2), (7, 2, 1), (40, 4, 2)])
def test_tree_keeps_to_its_limits(nodes, depth, width):
    rows = {token: [(token + step) % VOCABULARY for step in (1, 2, 5)] for token in range(VOCABULARY)}
    tree = draft(make_recycling_drafter(rows), 1, tree_size=nodes, tree_width=width, nodes=nodes, depth=depth)
    full = sum(width**level for level in range(1, depth + 1))
    assert len(tree) == min(nodes, full)
    assert max(tree.depths) <= depth
    for parent, below in zip([1, *tree.tokens], tree.children, strict=True):
        assert [tree.tokens[node] for node in below] == rows[parent][: len(below)]
        assert len(below) <= width


def test_every_row_of_a_step_is_learned():
    drafter = make_recycling_drafter()
    tree = DraftTree(tokens=[2, 3, 4], parents=[-1, -1, 0], drafters=["other"] * 3)
    rows = [[2, 3, 9], [4, 8, 7], [6, 5, 1], [9, 1, 2]]
    drafter.observe([seen([7, 1, 2, 4, 9], committed=3, tree=tree, path=[0, 2], successors=rows)])
    assert drafter.table == {1: rows[0], 2: rows[1], 3: rows[2], 4: rows[3]}


def test_step_without_a_draft_teaches_the_root():
    drafter = make_recycling_drafter()
    drafter.observe([seen([5, 6], committed=1, successors=[[6, 1, 2]])])
    assert drafter.table == {5: [6, 1, 2]}


def test_chunk_of_a_prompt_teaches_nothing():
    drafter = make_recycling_drafter()
    drafter.observe([replace(seen([5], committed=1, successors=None), verdict=None, committed=[])])
    assert drafter.table == {} and drafter.chances.tokens == 0


def test_root_is_found_where_a_stop_condition_cut_the_step():
    drafter = make_recycling_drafter()
    rows = [[2, 3, 4], [3, 4, 5], [4, 5, 6]]
    tree = DraftTree.chain([2, 3], "recycling")
    drafter.observe([seen([1, 2], committed=1, tree=tree, path=[0, 1], token=4, successors=rows)])
    assert drafter.table == {1: rows[0], 2: rows[1], 3: rows[2]}


def test_rows_of_the_text_win_over_rejected_ones_and_later_ones_over_earlier():
    tree = DraftTree(tokens=[1, 2, 2, 1], parents=[-1, 0, -1, 2], drafters=["recycling"] * 4)
    rows = [[10, 11, 12], [13, 14, 15], [16, 17, 18], [3, 4, 5], [6, 7, 8]]
    drafter = make_recycling_drafter()
    drafter.observe([seen([1, 1, 13], committed=2, tree=tree, path=[0], successors=rows)])
    assert drafter.table == {1: rows[1], 2: rows[2]}  # row 1 is the text's last; of two rejected the better node's


def test_root_wins_over_a_rejected_node_of_its_token():
    drafter = make_recycling_drafter()
    rows = [[5, 6, 7], [8, 9, 10]]
    drafter.observe([seen([1, 5], committed=1, tree=DraftTree.chain([1], "recycling"), successors=rows)])
    assert drafter.table == {1: rows[0]}


def test_later_steps_overwrite_the_table():
    drafter = make_recycling_drafter({1: [2, 3, 4]})
    drafter.observe([seen([1, 5], committed=1, successors=[[5, 6, 7]])])
    assert draft(drafter, 1).tokens == [5]


def test_requests_share_the_table_and_closing_keeps_it():
    drafter = make_recycling_drafter()
    told = seen([1, 5], committed=1, successors=[[5, 6, 7]])
    drafter.observe([told])
    drafter.close(told.request)
    assert draft(drafter, 1).tokens == [5]


def test_chances_count_the_rank_that_came_at_each_depth():
    chances = RankChances(3)
    before = chances.rows(2)
    assert before[0][0] == FIRST and before[0] == sorted(before[0], reverse=True)
    guesses = [[4, 5, 6], [7, 8, 9]]
    for _ in range(50):
        chances.count(guesses, [4, 9])
    after = chances.rows(2)
    assert after[0][0] > 0.6 > FIRST and after[0][0] > after[1][0]
    assert after[1][2] > after[0][2] > before[0][2]
    assert chances.tokens == 100


def test_unknown_rows_are_not_held_against_a_rank():
    chances = RankChances(3)
    chances.count([None], [4])
    assert chances.rows(1) == RankChances(3).rows(1) and chances.tokens == 0


def test_old_counts_fade():
    chances = RankChances(1)
    for _ in range(MEMORY):
        chances.count([[4]], [5])
    for _ in range(MEMORY):
        chances.count([[4]], [4])
    assert chances.rows(1)[0][0] > 0.6
    assert sum(chances.seen) <= MEMORY + PRIOR_WEIGHT


def test_chances_are_learned_from_steps_of_other_drafters():
    drafter = make_recycling_drafter({1: [2, 3, 4], 3: [5, 6, 7]})
    tree = DraftTree.chain([3], "other")
    drafter.observe([seen([1, 3, 7], committed=2, tree=tree, path=[0], successors=[[3, 2, 4], [7, 5, 6]])])
    assert drafter.chances.hits[:2] == [[0, 1, 0], [0, 0, 1]]


def test_shape_follows_what_is_learned():
    rows = {token: [(token + step) % VOCABULARY for step in (1, 2, 5)] for token in range(VOCABULARY)}
    drafter = make_recycling_drafter(rows)
    deep = draft(drafter, 1, tree_size=6, nodes=6, depth=6)
    for _ in range(REPLAN):  # rank 2 always comes, nothing after it
        drafter.chances.count([[1, 2, 3], [1, 2, 3]], [3, 9])
    wide = draft(drafter, 1, tree_size=6, nodes=6, depth=6)
    assert paths_of(wide)[0] == (6,) and paths_of(deep)[0] == (2,)
    assert wide.chances[0] > 0.5 > deep.chances[0]


def test_nodes_carry_the_chances_of_their_rank_and_depth():
    rows = {token: [(token + step) % VOCABULARY for step in (1, 2, 5)] for token in range(VOCABULARY)}
    drafter = make_recycling_drafter(rows)
    drafter.chances.count([[4, 5, 6], [7, 8, 9]], [4, 9])
    expected = drafter.chances.rows(2)
    shape = "[[0], [2], [0, 1]]"
    assert draft(drafter, 1, speculative_token_tree=shape).chances == [expected[0][0], expected[0][2], expected[1][1]]
    del drafter.table[2]
    assert draft(drafter, 1, speculative_token_tree=shape).chances == [expected[0][0], expected[0][2]]


def test_threshold_ends_a_chain_after_the_first_unsure_token():
    drafter = make_recycling_drafter({token: [(token + 1) % VOCABULARY] for token in range(VOCABULARY)})
    assert len(draft(drafter, 1, depth=5, draft_confidence_threshold=0.9)) == 1
    assert len(draft(drafter, 1, depth=5, draft_confidence_threshold=0.1)) == 5


def test_maker_reads_the_config_and_asks_for_what_the_vocabulary_has():
    target = ScriptedTarget(lambda history: [0.0] * 5, vocabulary=5)
    assert make_drafter(SpeculationConfig(method="recycling", recycling_candidates=4), target).needs.successors == 4
    drafter = make_drafter(SpeculationConfig(method="recycling"), target)
    assert drafter.needs.successors == 5 and drafter.needs.instant


def test_small_vocabulary_is_served():
    def law(history):
        return [float((history[-1] * 3 + 1) % 5 == token) for token in range(5)]

    plain = Engine(ScriptedTarget(law, vocabulary=5), speculation=OFF).generate(
        [[1, 2]], SamplingParams(max_new_tokens=30)
    )[0]
    config = SpeculationConfig(method="recycling", tree_size=6)
    drafted = Engine(ScriptedTarget(law, vocabulary=5), speculation=config)
    output = drafted.generate([[1, 2]], SamplingParams(max_new_tokens=30))[0]
    assert output.token_ids == plain.token_ids
    assert output.statistics.tau > 2


QUESTIONS = [
    "Write a Python function that reverses a list.",
    "Write this form as JSON.\n\nname: Ada Berg\nage: 30\ncity: Oslo",
    "Passage:\nThe king had three sons. The youngest was kind to birds. He left home.\n\nRepeat the passage.",
    "A box holds 12 pens. How many pens do 5 boxes hold?",
]
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=32),
    "seeded": SamplingParams(max_new_tokens=32, temperature=1.0, seed=7),
}
CONFIGS = {
    "chain": {},
    "tree": {"tree_size": 16},
    "fixed tree": {"speculative_token_tree": "eagle_25"},
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)


@pytest.fixture(scope="module")
def prompts(engine) -> list[list[int]]:
    return [engine.chat([{"role": "user", "content": question}]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def plain(engine, prompts):
    return plain_texts(engine, prompts, SAMPLINGS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_recycling_changes_no_token(engine, prompts, plain, name, sampling):
    config = SpeculationConfig(method="recycling", **CONFIGS[name])
    together = engine.generate(prompts, SAMPLINGS[sampling], config)
    alone = [engine.generate([prompt], SAMPLINGS[sampling], config)[0] for prompt in prompts[2:]]
    assert [output.token_ids for output in together] == plain[sampling]
    assert [output.token_ids for output in alone] == plain[sampling][2:]
    for outputs in (together, alone):
        assert sum(output.statistics.accepted for output in outputs) > 0
    engine.target.pool.check_integrity([])


def test_every_second_step_by_another_drafter_changes_no_token(engine, prompts, plain, monkeypatch):
    """What the table holds after a step must not depend on whose draft it was."""
    config = SpeculationConfig(method="recycling", recycling_candidates=5)  # a drafter of its own
    drafter, other, asked = engine.drafter_for(config), NgramDrafter(), []
    own = drafter.propose

    def propose(tasks):
        asked.append(len(tasks))
        return own(tasks) if len(asked) % 2 else other.propose(tasks)

    monkeypatch.setattr(drafter, "propose", propose)
    outputs = engine.generate(prompts, SAMPLINGS["greedy"], config)
    assert [output.token_ids for output in outputs] == plain["greedy"]
    assert sum(output.statistics.accepted_by.get("recycling", 0) for output in outputs) > 0
    engine.target.pool.check_integrity([])
