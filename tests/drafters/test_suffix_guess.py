from itertools import product
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_ways import each_way

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.drafters.suffix_guess import GuessLimits

ALPHABET, DEPTH = 3, 5
texts = st.lists(st.integers(0, ALPHABET - 1), min_size=1, max_size=40)
limits = st.builds(
    GuessLimits,
    nodes=st.integers(1, 6),
    depth=st.integers(1, 5),
    width=st.just(1),
    factor=st.sampled_from([0.5, 1.0, 2.0]),
    min_prob=st.sampled_from([0.0, 0.1, 0.4]),
)


def tree_of(way, sequences, depth=DEPTH):
    tree = way.make(depth)
    for text in sequences:
        tree.insert(text)
    return tree


def make_limits(*, nodes=8, depth=8, width=1, factor=4.0, min_prob=0.1, least=0.0):
    return GuessLimits(nodes=nodes, depth=depth, width=width, factor=factor, min_prob=min_prob, least=least)


def occurrences(string, sequences):
    width = len(string)
    return sum(text[i : i + width] == string for text in sequences for i in range(len(text) - width + 1))


def shares(string, sequences):
    """Each token's share of what the string's occurrences go on with."""
    whole = occurrences(string, sequences)
    return {token: occurrences([*string, token], sequences) / whole for token in range(ALPHABET)}


def matches(context, sequences):
    lengths = range(1, min(DEPTH - 1, len(context)) + 1)
    return [length for length in lengths if occurrences(context[-length:], sequences)]


def reference_chains(string, sequences, room, least, prob=1.0):
    """(tokens, score) of every chain that always takes a likeliest token; several where counts tie."""
    share = shares(string, sequences) if room else {}
    top = max(share.values(), default=0.0)
    if not top or prob * top < least:
        return [((), 0.0)]
    chains = []
    for token in [token for token in share if share[token] == top]:
        for rest, score in reference_chains([*string, token], sequences, room - 1, least, prob * top):
            chains.append(((token, *rest), prob * top + score))
    return chains


def probability(string, path, sequences):
    prob = 1.0
    for i, token in enumerate(path):
        here = [*string, *path[:i]]
        whole = occurrences(here, sequences)
        prob *= occurrences([*here, token], sequences) / whole if whole else 0.0
    return prob


@each_way
@settings(max_examples=150, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3), texts, limits)
def test_chain_is_the_best_likeliest_continuation(way, sequences, context, limits):
    guess = way.best_guess(tree_of(way, sequences), context, limits)
    every, least = [((), 0.0)], [0.0]
    for matched in matches(context, sequences):
        room = min(limits.nodes, limits.depth, int(limits.factor * matched + 1e-6), DEPTH - matched)
        chains = reference_chains(context[-matched:], sequences, room, limits.min_prob)
        every += chains
        least.append(min(score for _, score in chains))
    assert guess.parents == list(range(-1, len(guess.tokens) - 1))
    assert any(tuple(guess.tokens) == tokens and guess.score == pytest.approx(score) for tokens, score in every)
    assert guess.score >= max(least) - 1e-9


@each_way
@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=1, max_size=2), texts, limits)
def test_tree_holds_the_most_probable_nodes_of_the_best_match(way, sequences, context, limits):
    wide = make_limits(
        nodes=limits.nodes, depth=limits.depth, width=ALPHABET, factor=limits.factor, min_prob=limits.min_prob
    )
    guess = way.best_guess(tree_of(way, sequences), context, wide)
    scores = [0.0]
    for matched in matches(context, sequences):
        deepest = min(limits.depth, DEPTH - matched)
        paths = [path for length in range(1, deepest + 1) for path in product(range(ALPHABET), repeat=length)]
        probs = [probability(context[-matched:], path, sequences) for path in paths]
        likely = sorted((prob for prob in probs if prob > 0 and prob >= limits.min_prob), reverse=True)
        scores.append(sum(likely[: min(limits.nodes, int(limits.factor * matched + 1e-6))]))
    assert guess.score == pytest.approx(max(scores))


@each_way
@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=1, max_size=3), texts, limits, st.integers(2, 3))
def test_tree_keeps_to_its_limits(way, sequences, context, limits, width):
    wide = make_limits(nodes=limits.nodes, depth=limits.depth, width=width)
    guess = way.best_guess(tree_of(way, sequences), context, wide)
    children: dict[int, list[int]] = {}
    depths = {ROOT: 0}
    for node, (token, parent) in enumerate(zip(guess.tokens, guess.parents, strict=True)):
        children.setdefault(parent, []).append(token)
        depths[node] = depths[parent] + 1
    assert len(guess.tokens) <= limits.nodes
    assert max(depths.values()) <= limits.depth
    assert all(len(set(siblings)) == len(siblings) <= width for siblings in children.values())


@each_way
def test_tree_takes_nodes_by_probability(way):
    tree = tree_of(way, [[1, 5, 7], [1, 5, 8], [1, 5, 7], [1, 6, 9]])
    guess = way.best_guess(tree, [1], make_limits(width=2, factor=5.0))
    assert guess.tokens == [5, 7, 6, 8, 9]
    assert guess.parents == [-1, 0, -1, 0, 2]
    assert guess.score == pytest.approx(0.75 + 0.5 + 0.25 + 0.25 + 0.25)


@each_way
@settings(max_examples=60, deadline=None)
@given(st.lists(texts, min_size=1, max_size=2), texts, limits, st.integers(1, 3))
def test_counts_are_those_of_what_followed(way, sequences, context, limits, width):
    """Each given its parent; the sum of their products along paths is the score that ranks guesses."""
    wide = make_limits(
        nodes=limits.nodes, depth=limits.depth, width=width, factor=limits.factor, min_prob=limits.min_prob
    )
    guess = way.best_guess(tree_of(way, sequences), context, wide)
    tree = DraftTree(tokens=guess.tokens, parents=guess.parents, drafters=["suffix"] * len(guess.tokens))
    suffixes = [context[-length:] for length in matches(context, sequences)]
    wanted = [
        [shares([*suffix, *tree.path_tokens(node)[:-1]], sequences)[tree.tokens[node]] for node in range(len(tree))]
        for suffix in suffixes
        if all(occurrences([*suffix, *tree.path_tokens(node)], sequences) for node in range(len(tree)))
    ]
    own = [count / whole for count, whole in guess.counts]
    assert not len(tree) or any(own == pytest.approx(shares) for shares in wanted)
    products = [prod(own[above] for above in tree.path(node)) for node in range(len(tree))]
    assert sum(products) == pytest.approx(guess.score)


@each_way
def test_probability_is_the_product_of_shares(way):
    tree = tree_of(way, [[1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 5, 6]])
    guess = way.best_guess(tree, [1], make_limits())
    assert guess.tokens == [2, 3]
    assert guess.counts == [(3, 4), (2, 3)]
    assert guess.score == pytest.approx(3 / 4 + 3 / 4 * 2 / 3)


@each_way
@pytest.mark.parametrize(("min_prob", "drafted"), [(0.5, [2, 3]), (0.51, [2]), (0.76, [])])
def test_chain_stops_below_the_least_probability(way, min_prob, drafted):
    tree = tree_of(way, [[1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 5, 6]])
    assert way.best_guess(tree, [1], make_limits(min_prob=min_prob)).tokens == drafted


def after(way, text, *, past=(), **limits):
    """The guess for a text by its own tree and by one of past texts."""
    own = way.make(24)
    own.insert([])
    [(tokens, parents, chances)] = way.guesses(tree_of(way, past, depth=24), [(own, text, make_limits(**limits))])
    return tokens, parents, chances


@each_way
def test_what_followed_a_long_string_is_likelier_than_what_followed_a_short_one(way):
    short, long = after(way, [1, 5, 7, 1]), after(way, [3, 4, 1, 5, 7, 3, 4, 1])
    assert short[0][0] == long[0][0] == 5
    assert short[2][0] == pytest.approx(1 - 1 / 1.6)  # one token, whose end of the text is no place that goes on
    assert long[2][0] == pytest.approx(1 - 1 / 2.8)
    assert long[2][1] == pytest.approx(1 - 1 / 3.4)  # behind it the string is a token longer


@each_way
def test_what_followed_often_is_likelier_than_what_followed_once(way):
    chances = [after(way, [9, 1], past=[[1, 5, 7]] * times)[2][0] for times in (1, 2, 20)]
    assert chances == pytest.approx([1 - 1 / (1.6 * times) for times in (1, 2, 20)])


@each_way
def test_a_draft_ends_where_its_path_is_too_unlikely(way):
    text = [1, 5, 7, 8, 1]  # paths of 0.375, 0.205 and 0.132
    for least, drafted in ((0.0, [5, 7, 8]), (0.2, [5, 7]), (0.3, [5]), (0.4, [])):
        tokens, parents, chances = after(way, text, least=least, nodes=3)
        assert tokens == drafted and parents == list(range(-1, len(drafted) - 1))
        assert prod(chances) >= least


@each_way
def test_the_branches_that_are_left_keep_their_parents(way):
    past = [[1, 5, 7], [1, 5, 8], [1, 5, 7], [1, 6, 9]]
    limits = {"width": 2, "factor": 5.0}
    tokens, parents, _ = after(way, [4, 1], past=past, **limits)
    assert (tokens, parents) == ([5, 7, 6, 8, 9], [-1, 0, -1, 0, 2])
    tokens, parents, chances = after(way, [4, 1], past=past, least=0.21, **limits)
    assert (tokens, parents) == ([5, 7, 6], [-1, 0, -1])
    assert chances[2] == pytest.approx(1 / 4 * (1 - 1 / (1.6 * 4)))
    tokens, parents, _ = after(way, [4, 1], past=past, least=0.15, **limits)
    assert (tokens, parents) == ([5, 7, 6, 8], [-1, 0, -1, 0])


@each_way
@pytest.mark.parametrize(("factor", "drafted"), [(0.0, 0), (0.4, 0), (0.5, 1), (1.0, 2), (1.5, 3)])
def test_length_is_bounded_by_the_match(way, factor, drafted):
    tree = tree_of(way, [[1, 2, 3, 4, 5, 6, 7]], depth=24)
    assert len(way.best_guess(tree, [9, 1, 2], make_limits(factor=factor)).tokens) == drafted


@each_way
@pytest.mark.parametrize("tree_depth", [3, 24])
def test_longer_match_wins_a_tie(way, tree_depth):
    tree = tree_of(way, [[8, 1, 5], [9, 1, 6], [9, 1, 6], [7, 1, 6]], depth=tree_depth)
    assert way.best_guess(tree, [8, 1], make_limits(depth=1)).tokens == [5]


@each_way
@pytest.mark.parametrize("copies", [1, 20])
def test_latest_continuation_wins_a_tie(way, copies):
    tree = tree_of(way, [[1, 5], [1, 6]] * copies)
    assert way.best_guess(tree, [1], make_limits()).tokens == [6]


@each_way
@pytest.mark.parametrize("width", [1, 2])
def test_text_repeated_for_longer_than_the_tree_is_deep_drafts_a_full_length(way, width):
    text = list(range(100, 140))
    tree = tree_of(way, [text], depth=8)
    assert way.best_guess(tree, text[:30], make_limits(depth=5, factor=1.0, width=width)).tokens == text[30:34]


@each_way
def test_only_a_higher_score_beats_the_one_given(way):
    tree = tree_of(way, [[1, 2]])
    assert way.best_guess(tree, [1], make_limits(), to_beat=0.9).tokens == [2]
    assert way.best_guess(tree, [1], make_limits(), to_beat=1.0).tokens == []
