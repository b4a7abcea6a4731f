import pytest
from draft_tasks import make_request, task_for
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft import ConfigError, Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import make_drafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.prediction import PredictionDrafter, merged, readings
from foredraft.drafters.prediction_alignment import (
    BACKWARD,
    CONFIRMED,
    ELSEWHERE,
    LONGEST,
    PRIOR,
    PRIOR_WEIGHT,
    Alignment,
    GramIndex,
    PlaceChances,
)
from foredraft.model.scripted_target import ScriptedTarget

PROMPT = [99]
texts = st.lists(st.integers(0, 3), max_size=30)


def numbers(text: str) -> list[int]:
    """A tokenizer whose tokens are the numbers of a text."""
    return [int(word) for word in text.split()]


def letters(text: str) -> list[int]:
    """A tokenizer of words where a leading space belongs to the word's token."""
    words = [f" {word}" for word in text.split(" ")]
    words[0] = words[0][1:]
    return [sum(map(ord, word)) for word in words if word]


def drafting(prediction, *, encode=numbers, **speculation):
    """A drafter, a request, and a call that writes tokens and then drafts."""
    drafter, request = PredictionDrafter(encode), make_request(PROMPT, prediction=prediction, **speculation)

    def draft(*written, nodes=64, depth=64):
        request.tokens += written
        [tree] = drafter.propose([task_for(request, nodes=nodes, depth=depth)])
        return tree

    return drafter, request, draft


def paths_of(tree):
    return [tree.path_tokens(node) for node in range(len(tree))]


def test_drafts_the_beginning_before_anything_is_written():
    _, _, draft = drafting("1 2 3 4 5 6")
    assert draft(depth=3).tokens == [1, 2, 3]


def test_goes_on_where_the_answer_stands():
    _, _, draft = drafting("1 2 3 4 5 6")
    assert draft(1, 2, depth=3).tokens == [3, 4, 5]
    assert draft(3, depth=3).tokens == [4, 5, 6]
    assert draft(4, depth=3).tokens == [5, 6]
    assert len(draft(5, 6)) == 0


def test_replaced_tokens_are_skipped():
    _, _, draft = drafting("1 2 3 4 5 6 7 8 9")
    assert draft(1, 2, 3, 77, depth=2).tokens == [5, 6]
    assert draft(78, depth=2).tokens == [6, 7]


def test_inserted_tokens_are_stepped_over():
    _, _, draft = drafting("1 2 3 4 5 6 7 8 9", tree_size=8)
    tree = draft(1, 2, 3, 77, 78, 79, depth=1)
    assert sorted(tree.tokens) == [4, 7]  # inserted, or replaced
    assert draft(4, depth=2).tokens[0] == 5
    assert draft(5, 6, 7, depth=2).tokens == [8, 9]


def test_deleted_tokens_are_jumped_over():
    _, _, draft = drafting("1 2 3 4 5 6 7 8 9")
    assert draft(1, 2, 6, depth=2).tokens == [7, 8]


def test_longer_match_wins_over_a_nearer_one():
    _, _, draft = drafting("1 2 3 4 30 8 9 6 7 31")
    assert draft(1, 2, 3, 6, 4, depth=1).tokens == [30]
    assert draft(6, 7, depth=1).tokens == [31]


def test_nearest_of_repeated_passages_wins_and_forward_before_backward():
    _, _, draft = drafting("5 6 10 11 5 6 12 13 14 5 6 15")
    assert draft(5, 6, 10, 5, 6, depth=1).tokens == [12]
    _, _, draft = drafting("1 2 10 3 4 5 6 1 2 11")
    assert draft(1, 2, 10, 3, 4, 1, 2, depth=1).tokens == [11]


def test_answer_may_go_back():
    _, _, draft = drafting("1 2 3 4 5 6 7 8")
    assert draft(1, 2, 3, 4, 5, 6, 2, 3, depth=2).tokens == [4, 5]


def test_single_token_far_away_says_nothing():
    far = " ".join(map(str, range(10, 60)))
    _, _, draft = drafting(f"1 2 {far}")
    assert draft(1, 2, 57, depth=1).tokens == [11]  # supposed to replace 10
    _, _, draft = drafting(f"1 2 {far}")
    assert draft(1, 2, 14, depth=1).tokens == [15]


def test_answer_with_nothing_of_the_prediction_loses_no_place():
    """A long insertion must not drag the place along: the text goes on where it was left."""
    drafter, request, draft = drafting("1 2 3 4 5 6 7 8 9")
    draft(1, 2, 3, *range(50, 90))
    alignment = drafter.texts[request.id].alignment
    assert (alignment.anchor, alignment.strayed) == (3, 40)
    assert draft(4, 5, depth=2).tokens == [6, 7]


def test_place_is_given_up_once_a_run_confirms_another():
    drafter, request, draft = drafting("1 2 3 4 5 6 7 8 9")
    alignment = drafter.texts
    draft(1, 2, 3, 77, *range(5, 4 + CONFIRMED))
    assert alignment[request.id].alignment.anchor == 3
    draft(4 + CONFIRMED)
    alignment = alignment[request.id].alignment
    assert (alignment.anchor, alignment.run, alignment.strayed) == (4 + CONFIRMED, CONFIRMED, 0)


def test_steps_without_being_asked_change_nothing():
    prediction, written = "1 2 3 4 5 6 7 8 9 10", [1, 2, 3, 77, 5, 6, 7]
    _, _, every = drafting(prediction)
    _, _, once = drafting(prediction)
    for token in written:
        tree = every(token, depth=3)
    assert once(*written, depth=3).tokens == tree.tokens == [8, 9, 10]


def test_being_asked_twice_teaches_nothing_twice():
    drafter, _, draft = drafting("1 2 3 4 5")
    draft(1, 2)
    seen, first = list(drafter.chances.seen), draft()
    assert draft() == first
    assert drafter.chances.seen == seen


def test_first_word_may_have_a_space_before_it():
    plain, spaced = readings("def f return", letters)
    assert plain[0] != spaced[0] and plain[1:] == spaced[1:]
    for first in (plain[0], spaced[0]):
        drafter, request, draft = drafting("def f return", encode=letters)
        assert draft(first).tokens == plain[1:]
        assert drafter.texts[request.id].alignment.run == 1


def test_tree_offers_both_first_words():
    plain, spaced = readings("def f return", letters)
    _, _, draft = drafting("def f return", encode=letters, tree_size=8)
    assert paths_of(draft(depth=1)) == [[plain[0]], [spaced[0]]]


def test_tree_merges_several_places():
    _, _, draft = drafting("1 2 7 8 20 1 2 7 9 21 1 2 22", tree_size=12)
    tree = draft(1, 2, 7, 30, 1, 2, depth=2)
    assert [7, 9] in paths_of(tree) and [7, 8] in paths_of(tree)
    for below in tree.children:
        tokens = [tree.tokens[node] for node in below]
        assert len(set(tokens)) == len(tokens) <= 3


def test_tree_keeps_the_likeliest_nodes():
    paths = [[(1, 0.9), (2, 0.5), (3, 0.9)], [(4, 0.6), (5, 0.9)], [(1, 0.2), (6, 0.8)]]
    tree = merged(paths, "prediction", nodes=4, width=3)
    assert paths_of(tree) == [[1], [4], [4, 5], [1, 6]]
    assert tree.chances == [0.9, 0.6, 0.9, 0.8]
    narrow = merged(paths, "prediction", nodes=9, width=1)
    assert paths_of(narrow) == [[1], [1, 2], [1, 2, 3]]


@pytest.mark.parametrize(("nodes", "depth"), [(2, 5), (5, 2)])
@pytest.mark.parametrize("tree_size", [0, 8])
def test_draft_keeps_to_nodes_and_depth(nodes, depth, tree_size):
    _, _, draft = drafting("1 2 3 4 5 6 7", tree_size=tree_size)
    assert draft(1, nodes=nodes, depth=depth).tokens == [2, 3]


def test_chances_rise_with_the_run_that_matches():
    _, _, draft = drafting(" ".join(map(str, range(60))))
    early, late = draft(0, depth=4).chances, draft(*range(1, 40), depth=4).chances
    assert early == sorted(early) and early[-1] < late[0]


def test_chances_are_learned():
    chances = PlaceChances()
    assert chances.of(ELSEWHERE) == PRIOR[ELSEWHERE]
    for _ in range(PRIOR_WEIGHT):
        chances.count(ELSEWHERE, True)
    assert chances.of(ELSEWHERE) == pytest.approx((PRIOR[ELSEWHERE] + 1) / 2)
    for _ in range(3000):
        chances.count(ELSEWHERE, False)
    assert chances.of(ELSEWHERE) < 0.02


def test_useless_predictions_are_drafted_less():
    drafter, request, draft = drafting(" ".join(map(str, range(100))))
    for _ in range(40):
        draft(7, 500)
    other = make_request(PROMPT, prediction=request.speculation.prediction)
    drafter.propose([task_for(other)])
    other.tokens.append(500)
    [tree] = drafter.propose([task_for(other)])
    _, _, fresh = drafting(request.speculation.prediction)
    assert tree.chances < fresh(500).chances


def test_threshold_ends_a_path_after_the_first_unsure_token():
    _, _, draft = drafting("1 2 3 4 5 6 7 8 9", draft_confidence_threshold=PRIOR[2])
    tree = draft(1)  # chances of runs 1, 2, 3, ...
    assert tree.tokens == [2]
    assert len(draft(2, depth=5)) == 5


@settings(max_examples=100, deadline=None)
@given(tokens=texts, data=st.data())
def test_index_finds_the_nearest_ends(tokens, data):
    n, place = data.draw(st.integers(1, LONGEST)), data.draw(st.integers(0, 30))
    gram = tuple(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    ends = [end for end in range(n, len(tokens) + 1) if tuple(tokens[end - n : end]) == gram]
    after, before = [end for end in ends if end >= place][:1], [end for end in ends if end < place][-1:]
    found = GramIndex(tokens).around(gram, place)
    assert sorted(found) == before + after
    if len(found) == 2:
        assert (found[0] == after[0]) == (after[0] - place <= BACKWARD * (place - before[0]))


@settings(max_examples=100, deadline=None)
@given(prediction=texts, answer=texts)
def test_places_of_matches_follow_the_last_tokens(prediction, answer):
    alignment, chances = Alignment(prediction), PlaceChances()
    for written, token in enumerate(answer, start=1):
        alignment.push(token, chances)
        assert 0 <= alignment.anchor <= len(prediction)
        if not alignment.strayed:
            assert prediction[: alignment.anchor][-1:] == [token]
        for place in alignment.candidates(several=True):
            run = min(place.run, LONGEST)
            assert prediction[place.index - run : place.index] == answer[written - run : written]


def test_request_without_a_prediction_is_decoded_plainly():
    for prediction in (None, ""):
        drafter, _, draft = drafting(prediction)
        assert len(draft(1)) == 0
        assert not drafter.texts


def test_prediction_without_tokens_drafts_nothing():
    _, _, draft = drafting(" ", tree_size=4)
    assert len(draft()) == 0
    assert len(draft(1)) == 0


def test_close_leaves_nothing_behind():
    drafter, request, draft = drafting("1 2 3")
    draft(1)
    drafter.close(request)
    assert not drafter.texts
    drafter.close(request)


def test_target_without_a_tokenizer_is_refused():
    target = ScriptedTarget(lambda history: [0.0, 1.0], vocabulary=2)
    with pytest.raises(ConfigError, match="scripted has no tokenizer"):
        make_drafter(SpeculationConfig(method="prediction"), target)


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


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)


@pytest.fixture(scope="module")
def prompts(engine) -> list[list[int]]:
    return [engine.chat([{"role": "user", "content": question}]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def plain(engine, prompts):
    return {name: [engine.generate([prompt], s)[0] for prompt in prompts] for name, s in SAMPLINGS.items()}


def edited(text: str) -> str:
    """The text with a word of its middle replaced and one of its end left out."""
    words = text.split(" ")
    middle, late = len(words) // 2, len(words) - len(words) // 4 - 1
    return " ".join([*words[:middle], "otherwise", *words[middle + 1 : late], *words[late + 1 :]])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("tree_size", [0, 12])
def test_an_edited_answer_predicts_itself_and_changes_no_token(engine, prompts, plain, sampling, tree_size):
    configs = [
        SpeculationConfig(
            method="prediction", prediction=edited(answer.text), num_speculative_tokens=12, tree_size=tree_size
        )
        for answer in plain[sampling]
    ]
    together = engine.generate(prompts, SAMPLINGS[sampling], configs)
    alone = engine.generate([prompts[2]], SAMPLINGS[sampling], configs[2])
    assert [output.token_ids for output in together] == [output.token_ids for output in plain[sampling]]
    assert alone[0].token_ids == plain[sampling][2].token_ids
    statistics = [output.statistics for output in together]
    assert sum(s.committed for s in statistics) > 2 * sum(s.rounds for s in statistics)
    assert engine.drafter_for(configs[0]) is engine.drafter_for(configs[1])
    assert not engine.drafter_for(configs[0]).texts
    engine.target.pool.check_integrity([])


def test_every_second_step_by_another_drafter_changes_no_token(engine, prompts, plain, monkeypatch):
    """Another one drafts between: the prediction's place must be found from what was written meanwhile."""
    config = SpeculationConfig(method="prediction", prediction=plain["greedy"][2].text, num_speculative_tokens=8)
    drafter, other, asked = engine.drafter_for(config), NgramDrafter(), []
    own = drafter.propose

    def propose(tasks):
        asked.append(len(tasks))
        return own(tasks) if len(asked) % 2 else other.propose(tasks)

    monkeypatch.setattr(drafter, "propose", propose)
    [output] = engine.generate([prompts[2]], SAMPLINGS["greedy"], config)
    assert output.token_ids == plain["greedy"][2].token_ids
    assert output.statistics.accepted_by["prediction"] > 8
