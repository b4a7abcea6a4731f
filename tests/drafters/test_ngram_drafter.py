import pytest
from draft_tasks import make_request, task_for
from hypothesis import given, settings
from hypothesis import strategies as st

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import make_drafter
from foredraft.drafters.ngram import CHAIN_MATCHES, TREE_MATCHES, NgramDrafter

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def draft(tokens, *, nodes=64, depth=64, **speculation):
    [tree] = NgramDrafter().propose([task_for(make_request(tokens, **speculation), nodes=nodes, depth=depth)])
    return tree


def paths_of(tree):
    return [tuple(tree.path_tokens(node)) for node in range(len(tree))]


def reference_ends(tokens, longest, shortest):
    """Every earlier end of a suffix with the suffix's length, found by looking everywhere."""
    ends: dict[int, int] = {}
    for n in range(longest, shortest - 1, -1):
        found = [end for end in range(len(tokens) - 1, n - 1, -1) if tokens[end - n : end] == tokens[-n:]]
        ends |= {end: n for end in found if end not in ends}
    return ends


def reference_chance(path, found):
    """Matched tokens of those that go on with the path's last token, among those that went so far, and two more."""
    *above, last = path
    here = [(n + len(above), copy[len(above)]) for copy, n in found if list(copy[: len(above)]) == above]
    return sum(matched for matched, token in here if token == last) / (sum(matched for matched, _ in here) + 2)


def reference_copy(tokens, end, length):
    text = list(tokens)
    for i in range(length):
        text.append(text[end + i])
    return tuple(text[len(tokens) :])


def reference_tree(paths, *, width, nodes):
    kept = []
    for path in paths:
        for length in range(1, len(path) + 1):
            prefix = path[:length]
            if prefix in kept:
                continue
            if len(kept) == nodes:
                return kept
            if sum(other[:-1] == prefix[:-1] and len(other) == length for other in kept) == width:
                break
            kept.append(prefix)
    return kept


def test_copies_what_followed_the_last_tokens():
    assert draft([1, 2, 3, 4, 5, 6, 9, 2, 3], depth=3).tokens == [4, 5, 6]


def test_longest_suffix_wins_over_a_more_recent_match():
    assert draft([1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3], depth=1).tokens == [7]


def test_most_recent_match_wins_among_equals():
    assert draft([2, 3, 7, 2, 3, 8, 2, 3], depth=1).tokens == [8]


def test_match_that_reaches_the_end_goes_on_periodically():
    assert draft([9, 1, 2, 3, 1, 2, 3, 1, 2], depth=8).tokens == [3, 1, 2, 3, 1, 2, 3, 1]


def test_suffix_does_not_match_itself():
    assert len(draft([1, 2, 3, 4])) == 0


@pytest.mark.parametrize(("shortest", "drafted"), [(1, [5, 6]), (2, [])])
def test_shortest_suffix_is_a_limit(shortest, drafted):
    assert draft([4, 5, 6, 4], depth=2, prompt_lookup_min=shortest).tokens == drafted


def test_longest_suffix_is_a_limit():
    tokens = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert draft(tokens, depth=1, prompt_lookup_max=2).tokens == [8]


@pytest.mark.parametrize(("nodes", "depth"), [(2, 5), (5, 2)])
def test_chain_keeps_to_nodes_and_depth(nodes, depth):
    tree = draft([1] * 9, nodes=nodes, depth=depth)
    assert tree.tokens == [1, 1]
    assert tree.is_chain


def test_tree_merges_the_continuations_of_several_matches():
    tree = draft([1, 2, 5, 6, 1, 2, 5, 7, 1, 2, 8, 9, 1, 2], depth=2, tree_size=8)
    assert paths_of(tree) == [(8,), (8, 9), (5,), (5, 7), (5, 6)]


def test_tree_width_limits_siblings():
    tree = draft([1, 2, 5, 1, 2, 6, 1, 2, 7, 1, 2], depth=1, tree_size=8, tree_width=2)
    assert tree.tokens == [7, 6]


def test_tree_looks_at_a_bounded_number_of_matches():
    far = [1, 9] + [1, 2] * TREE_MATCHES + [1]
    near = [1, 9] + [1, 2] * (TREE_MATCHES - 1) + [1]
    options = {"depth": 1, "tree_size": 8, "prompt_lookup_min": 1, "prompt_lookup_max": 1}
    assert draft(far, **options).tokens == [2]
    assert draft(near, **options).tokens == [2, 9]


def test_match_of_two_lengths_counts_once():
    often, seldom = [8, 1, 2] * (TREE_MATCHES * 5 // 8), [7, 1, 2] * (TREE_MATCHES // 4)
    tree = draft([1, 9, *seldom, *often, 8, 1], depth=1, tree_size=8, prompt_lookup_min=1, prompt_lookup_max=2)
    assert tree.tokens == [2, 9]


def test_nodes_are_marked_with_the_drafter():
    assert draft([1, 1, 1], depth=2).drafters == ["ngram", "ngram"]


@settings(max_examples=100, deadline=None)
@given(tokens=texts, longest=st.integers(1, 5), data=st.data())
def test_chain_equals_brute_force_as_the_text_grows(tokens, longest, data):
    shortest = data.draw(st.integers(1, longest))
    request = make_request(tokens[:1], prompt_lookup_max=longest, prompt_lookup_min=shortest)
    drafter = NgramDrafter()
    for token in tokens[1:]:
        request.tokens.append(token)
        if data.draw(st.booleans()):
            [tree] = drafter.propose([task_for(request, depth=5)])
            ends = reference_ends(request.tokens, longest, shortest)
            found = [(reference_copy(request.tokens, end, 5), n) for end, n in ends.items()]
            assert tuple(tree.tokens) == (found[0][0] if found else ())
            assert tree.is_chain
            wanted = [reference_chance(path, found[:CHAIN_MATCHES]) for path in paths_of(tree)]
            assert tree.chances == pytest.approx(wanted)


@settings(max_examples=100, deadline=None)
@given(tokens=texts, nodes=st.integers(1, 12), depth=st.integers(1, 5), width=st.integers(1, 3))
def test_tree_equals_brute_force(tokens, nodes, depth, width):
    options = {"prompt_lookup_max": 3, "prompt_lookup_min": 1, "tree_size": 12, "tree_width": width}
    found = [(reference_copy(tokens, end, depth), n) for end, n in reference_ends(tokens, 3, 1).items()]
    tree = draft(tokens, nodes=nodes, depth=depth, **options)
    assert paths_of(tree) == reference_tree([path for path, _ in found], width=width, nodes=nodes)
    assert tree.chances == pytest.approx([reference_chance(path, found) for path in paths_of(tree)])


def chance(tokens, **options):
    return draft(tokens, depth=1, **options).chances[0]


def test_longer_more_and_unanimous_matches_are_surer():
    short, long = [1, 2, 9, 1, 2], [8, 1, 2, 9, 8, 1, 2]
    often, split = [1, 2, 9, 1, 2, 9, 1, 2], [1, 2, 7, 1, 2, 9, 1, 2]
    assert chance(split) < chance(short) == 1 / 2 < chance(long) == 3 / 5 and chance(short) < chance(often)
    assert chance(often, tree_size=4) == chance(often)


def test_what_goes_on_matching_becomes_surer():
    chances = draft([1, 2, 5, 6, 7, 1, 2], depth=3).chances
    assert chances == sorted(chances) and chances[0] < chances[-1] < 1


@settings(max_examples=60, deadline=None)
@given(tokens=texts, width=st.integers(1, 3))
def test_siblings_share_less_than_everything(tokens, width):
    tree = draft(tokens, depth=4, tree_size=12, tree_width=width, prompt_lookup_min=1)
    assert all(0 < own < 1 for own in tree.chances)
    assert all(sum(tree.chances[child] for child in children) < 1 for children in tree.children)


def test_requests_do_not_see_each_other():
    drafter = NgramDrafter()
    first, second = make_request([1, 2, 3, 1, 2]), make_request([1, 2, 4, 1, 2])
    trees = drafter.propose([task_for(first, depth=1), task_for(second, depth=1)])
    assert [tree.tokens for tree in trees] == [[3], [4]]


def test_close_leaves_nothing_behind():
    drafter, request = NgramDrafter(), make_request([1, 1, 1])
    drafter.propose([task_for(request)])
    assert drafter.tables
    drafter.close(request)
    assert not drafter.tables
    drafter.close(request)


def test_is_registered():
    assert NgramDrafter.needs.instant
    assert isinstance(make_drafter(SpeculationConfig(method="ngram"), None), NgramDrafter)
