from dataclasses import replace

import pytest
from draft_tasks import make_request, task_for
from suffix_ways import choose, each_way

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import make_drafter
from foredraft.drafters.growth import Growth
from foredraft.drafters.suffix import SuffixDrafter

pytestmark = each_way


@pytest.fixture(autouse=True)
def chosen(way, monkeypatch):
    choose(way, monkeypatch)


def make_suffix_drafter(*, max_cached=10):
    return SuffixDrafter(depth=24, max_cached=max_cached)


def propose(drafter, request, **limits):
    [tree] = drafter.propose([task_for(request, **limits)])
    return tree


def finish(drafter, output, *, prompt=(0,), reason="stop"):
    request = make_request(list(prompt))
    request.tokens += output
    request.finish_reason = reason
    drafter.close(request)


def test_drafts_from_the_prompt():
    assert propose(make_suffix_drafter(), make_request([1, 2, 3, 4, 5, 9, 1, 2, 3])).tokens == [4, 5, 9]


def test_follows_the_text_as_it_grows():
    drafter, request = make_suffix_drafter(), make_request([1, 2, 3])
    assert len(propose(drafter, request)) == 0
    request.tokens += [4, 9, 1, 2]
    assert propose(drafter, request).tokens == [3, 4]
    request.tokens += [3]
    assert propose(drafter, request).tokens == [4, 9, 1]
    assert drafter.texts[request.id].texts == {0: request.tokens}


def test_repeating_text_drafts_a_full_length():
    assert propose(make_suffix_drafter(), make_request([1, 2, 3] * 30), depth=5).tokens == [1, 2, 3, 1, 2]


def test_drafts_from_past_outputs():
    drafter = make_suffix_drafter()
    finish(drafter, [5, 6, 7, 8])
    assert propose(drafter, make_request([1, 5, 6])).tokens == [7, 8]


def test_prompts_are_not_shared_between_requests():
    drafter = make_suffix_drafter()
    finish(drafter, [9], prompt=[5, 6, 7, 8])
    assert len(propose(drafter, make_request([1, 5, 6]))) == 0


def test_cancelled_outputs_are_not_remembered():
    drafter = make_suffix_drafter()
    finish(drafter, [5, 6, 7, 8], reason=None)
    assert len(propose(drafter, make_request([1, 5, 6]))) == 0


def test_own_text_wins_a_tie():
    drafter = make_suffix_drafter()
    finish(drafter, [5, 6, 5])
    assert propose(drafter, make_request([1, 5]), depth=1).tokens == [6]
    assert propose(drafter, make_request([5, 7, 5]), depth=1).tokens == [7]


def test_past_outputs_win_with_a_higher_score():
    drafter = make_suffix_drafter()
    finish(drafter, [5, 6])
    assert propose(drafter, make_request([5, 7, 5]), depth=1).tokens == [6]


def test_oldest_outputs_leave_first():
    drafter = make_suffix_drafter(max_cached=2)
    for output in ([1, 11], [2, 12], [3, 13]):
        finish(drafter, output)
    assert [propose(drafter, make_request([token])).tokens for token in (1, 2, 3)] == [[], [12], [13]]


def test_cache_of_no_requests_remembers_nothing():
    drafter = make_suffix_drafter(max_cached=0)
    finish(drafter, [1, 11])
    assert not drafter.past.texts
    assert not drafter.cached


def test_tree_holds_several_continuations():
    request = make_request([1, 2, 5, 1, 2, 6, 1, 2], tree_size=8, suffix_decoding_max_spec_factor=4.0)
    tree = propose(make_suffix_drafter(), request, depth=1)
    assert sorted(tree.tokens) == [5, 6]
    assert tree.parents == [-1, -1]


def test_tree_width_limits_siblings():
    request = make_request([1, 5, 1, 6, 1, 7, 1], tree_size=8, tree_width=2, suffix_decoding_max_spec_factor=8.0)
    tree = propose(make_suffix_drafter(), request, depth=1)
    assert len(tree) == 2


@pytest.mark.parametrize(("nodes", "depth"), [(2, 5), (5, 2)])
def test_chain_keeps_to_nodes_and_depth(nodes, depth):
    tree = propose(make_suffix_drafter(), make_request([1, 2, 3] * 30), nodes=nodes, depth=depth)
    assert tree.tokens == [1, 2]
    assert tree.drafters == ["suffix", "suffix"]


@pytest.mark.parametrize("tree_size", [0, 8])
def test_nodes_say_how_likely_they_follow(tree_size):
    """5 followed 1 in two of three places that go on, then 7 and 8 in one each; less the fewer places there are and the
    shorter the string is."""
    options = {"tree_size": tree_size, "suffix_decoding_max_spec_factor": 8.0}
    drafter = make_suffix_drafter()
    finish(drafter, [1, 5, 7, 9])
    finish(drafter, [1, 5, 8, 9])
    finish(drafter, [1, 6, 9, 9])
    tree = propose(drafter, make_request([3, 1], **options), depth=2)
    sure, later = 1 - 1 / (1.6 * 3), 1 - 1 / (2.2 * 2)
    known = {(1, 5): 2 / 3 * sure, (1, 6): 1 / 3 * sure, (5, 7): 1 / 2 * later, (5, 8): 1 / 2 * later}
    known[6, 9] = 1 - 1 / 2.2
    before = [tree.tokens[parent] if parent >= 0 else 1 for parent in tree.parents]
    assert tree.chances == pytest.approx([known[pair] for pair in zip(before, tree.tokens, strict=True)])
    assert len(tree) == (5 if tree_size else 2)
    assert drafter.needs.instant


def test_close_drops_the_own_tree_only():
    drafter = make_suffix_drafter()
    first, second = make_request([1, 1, 1]), make_request([2, 2, 2])
    drafter.propose([task_for(first), task_for(second)])
    drafter.close(first)
    assert list(drafter.texts) == [second.id]
    drafter.close(second)
    drafter.close(second)
    assert not drafter.texts
    assert not drafter.past.texts


def test_registered_maker_reads_the_config():
    config = SpeculationConfig(method="suffix", suffix_decoding_max_tree_depth=7, suffix_decoding_max_cached_requests=3)
    drafter = make_drafter(config, None)
    assert (drafter.past.depth, drafter.max_cached) == (7, 3)


def test_pattern_depth_is_the_requests_own():
    request = make_request([1, 2, 3, 4, 9, 1, 2], suffix_decoding_max_tree_depth=3)
    assert propose(make_suffix_drafter(), request).tokens == [3]


def test_what_is_not_worth_its_row_is_left_out():
    drafter = make_suffix_drafter()
    for follower in (7, 7, 8, 9):
        finish(drafter, [1, 2, follower, 5])
    [whole] = drafter.propose([task_for(make_request([1, 2]))])
    assert whole.tokens[0] == 7 and whole.chances[0] == pytest.approx(0.5 * (1 - 1 / (2.2 * 4)))
    for row, kept in ((0.4, True), (0.5, False)):
        task = replace(task_for(make_request([1, 2])), growth=Growth(row=row))
        assert bool(drafter.propose([task])[0].tokens) == kept
    boasting = replace(task_for(make_request([1, 2])), growth=Growth(candour=2.0, row=0.4))  # 0.44 means 0.2
    assert not drafter.propose([boasting])[0].tokens
