from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_ways import each_way

from foredraft.drafters.suffix_tree import BUCKET, Node, SuffixTree

ALPHABET, DEPTH = 3, 5
texts = st.lists(st.integers(0, ALPHABET - 1), max_size=50)


def occurrences(string, sequences):
    width = len(string)
    return sum(text[i : i + width] == string for text in sequences for i in range(len(text) - width + 1))


def assert_counts(tree, sequences):
    """Every string over the alphabet is counted as often as it occurs."""
    for length in range(1, tree.depth + 1):
        for string in map(list, product(range(ALPHABET), repeat=length)):
            assert tree.count(string) == occurrences(string, sequences), string


@each_way
def test_counts_overlapping_occurrences(way):
    tree = way.make(4)
    tree.insert([1, 1, 1, 2])
    assert [tree.count(string) for string in ([1], [1, 1], [1, 1, 1], [1, 2], [2, 1])] == [3, 2, 1, 1, 0]


def test_frequent_strings_become_nodes_and_rare_ones_stay_in_buckets():
    tree = SuffixTree(4)
    tree.insert([1] * BUCKET + [2])
    assert type(tree.find([1])) is tuple
    tree.insert([1])
    assert type(tree.find([1])) is Node
    assert type(tree.find([2])) is tuple


def test_no_string_is_longer_than_the_depth():
    tree = SuffixTree(2)
    tree.insert([1] * 40)
    inner = tree.find([1])
    assert type(inner) is Node
    assert inner.children[1].count == 39
    assert not inner.children[1].children


@each_way
@settings(max_examples=40, deadline=None)
@given(st.lists(texts, max_size=4))
def test_counts_equal_brute_force(way, sequences):
    tree = way.make(DEPTH)
    for text in sequences:
        tree.insert(text)
    assert_counts(tree, sequences)


@each_way
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, ALPHABET - 1), max_size=12)), max_size=20))
def test_sequences_may_grow_side_by_side(way, pieces):
    tree, whole = way.make(DEPTH), [[], [], []]
    numbers = [tree.insert([]) for _ in whole]
    for which, piece in pieces:
        tree.extend(numbers[which], piece)
        whole[which] += piece
    assert_counts(tree, whole)


@each_way
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, st.booleans()), max_size=5), st.lists(st.integers(0, ALPHABET - 1), max_size=20))
def test_removed_sequences_leave_the_counts_of_the_others(way, sequences, more):
    tree = way.make(DEPTH)
    numbers = [tree.insert(text) for text, _ in sequences]
    for number, (_, stays) in zip(numbers, sequences, strict=True):
        if not stays:
            tree.remove(number)
    rest = {number: text for number, (text, stays) in zip(numbers, sequences, strict=True) if stays}
    assert_counts(tree, list(rest.values()))
    for number in rest:
        tree.extend(number, more)
    assert_counts(tree, [text + more for text in rest.values()])


@each_way
@settings(max_examples=40, deadline=None)
@given(st.lists(texts, max_size=4), st.randoms(use_true_random=False))
def test_a_tree_without_sequences_is_empty(way, sequences, order):
    tree = way.make(DEPTH)
    numbers = [tree.insert(text) for text in sequences]
    order.shuffle(numbers)
    for number in numbers:
        tree.remove(number)
    assert way.is_empty(tree)


@settings(max_examples=40, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3), texts)
def test_suffixes_end_at_the_longest_that_something_follows(sequences, context):
    tree = SuffixTree(DEPTH)
    for text in sequences:
        tree.insert(text)
    places = tree.suffixes(context)
    for length in range(1, min(DEPTH - 1, len(context)) + 1):
        string = context[-length:]
        goes_on = any(occurrences([*string, token], sequences) for token in range(ALPHABET))
        assert goes_on <= (length <= len(places))
        if length <= len(places):
            place = places[length - 1]
            assert (place.count if type(place) is Node else len(place)) == occurrences(string, sequences)


def test_end_of_the_text_itself_is_no_suffix_to_go_on_from():
    tree = SuffixTree(8)
    tree.insert([4, 3, 1, 2, 3])
    assert [tree.count([3]), tree.count([2, 3])] == [2, 1]
    assert len(tree.suffixes([4, 3, 1, 2, 3])) == 1


@pytest.mark.parametrize("repeats", [1, BUCKET])
def test_followers_rank_by_count(repeats):
    tree = SuffixTree(4)
    tree.insert([1, 5, 1, 6, 1, 7, 1, 7, 1, 6, 1, 7] * repeats)
    place = tree.find([1])
    assert [token for token, _ in tree.followers(place, 1, 2)] == [7, 6]
    assert tree.follower(place, 1)[0] == 7


def test_likeliest_follower_follows_the_counts():
    tree = SuffixTree(4)
    first = tree.insert([1, 5] * 20)
    node = tree.find([1])
    assert tree.follower(node, 1)[0] == 5
    second = tree.insert([1, 6] * 21)
    assert tree.follower(node, 1)[0] == 6
    tree.remove(second)
    assert tree.follower(node, 1)[0] == 5
    tree.insert([1, 6] * 3)
    tree.remove(first)
    assert tree.follower(node, 1)[0] == 6
