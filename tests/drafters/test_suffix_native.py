"""The native suffix trees draft what those in Python draft, to the last bit."""

from random import Random

import pytest
from draft_tasks import make_request, task_for
from hypothesis import given, settings
from hypothesis import strategies as st
from suffix_ways import NATIVE, PYTHON, choose, needs_native

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.suffix import SuffixDrafter
from foredraft.drafters.suffix_guess import GuessLimits
from foredraft.drafters.suffix_tree import SuffixTree
from foredraft.drafters.suffix_trees import suffix_trees
from foredraft.engine.engine import Engine
from foredraft.model import native_runtime

pytestmark = needs_native

TOKENS = [0, 1, 2**31 - 1]  # few, so that strings come again and again
texts = st.lists(st.sampled_from(TOKENS), max_size=25)
limits = st.builds(
    GuessLimits,
    nodes=st.integers(0, 12),
    depth=st.integers(1, 12),
    width=st.integers(1, 4),
    factor=st.sampled_from([0.0, 0.5, 1.0, 3.0, 64.0]),
    min_prob=st.sampled_from([0.0, 0.1, 1 / 3, 0.9]),
    least=st.sampled_from([0.0, 0.2, 0.6]),
)


class Pair:
    """A tree of each kind that all is done to alike."""

    def __init__(self, depth: int) -> None:
        self.python, self.native = PYTHON.make(depth), NATIVE.make(depth)
        self.numbers: list[tuple[int, int]] = []

    def insert(self, text: list[int]) -> None:
        self.numbers.append((self.python.insert(text), self.native.insert(text)))

    def extend(self, which: int, text: list[int]) -> None:
        mine, native = self.numbers[which % len(self.numbers)]
        self.python.extend(mine, text)
        self.native.extend(native, text)

    def remove(self, which: int) -> None:
        mine, native = self.numbers.pop(which % len(self.numbers))
        self.python.remove(mine)
        self.native.remove(native)

    def check_guess(self, context: list[int], limits: GuessLimits, to_beat: float) -> None:
        mine = PYTHON.best_guess(self.python, context, limits, to_beat)
        native = NATIVE.best_guess(self.native, context, limits, to_beat)
        assert told(native) == told(mine)


def told(guess) -> tuple:
    return guess.tokens, guess.parents, guess.counts, guess.matched, guess.score


def told_tree(tree) -> tuple:
    return tree.tokens, tree.parents, tree.chances, tree.drafters


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 9),
    st.lists(
        st.one_of(
            st.tuples(st.just("insert"), texts),
            st.tuples(st.just("extend"), st.integers(0, 9), texts),
            st.tuples(st.just("remove"), st.integers(0, 9)),
            st.tuples(st.just("check_guess"), texts, limits, st.sampled_from([0.0, 0.5, 1.0])),
        ),
        max_size=60,
    ),
)
def test_trees_guess_alike_whatever_came_before(depth, deeds):
    """Guesses in between matter: a node remembers the likeliest token from when it was first asked."""
    pair = Pair(depth)
    for name, *arguments in deeds:
        if pair.numbers or name in ("insert", "check_guess"):
            getattr(pair, name)(*arguments)


requests = st.integers(0, 3)
steps = st.tuples(
    st.dictionaries(requests, texts, max_size=4),
    st.lists(st.tuples(requests, st.booleans()), max_size=2),
    st.integers(1, 12),
    st.integers(1, 12),
)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([2, 3, 6, 24]),
    st.sampled_from([2, 5, 24]),
    st.integers(0, 3),
    st.sampled_from([(0, 1), (8, 1), (8, 3)]),
    st.lists(steps, max_size=25),
)
def test_drafters_draft_alike_for_requests_that_come_and_go(own_depth, past_depth, max_cached, shape, stream):
    size, width = shape
    options = {"tree_size": size, "tree_width": width, "suffix_decoding_max_tree_depth": own_depth}
    with pytest.MonkeyPatch.context() as patch:
        drafters = [drafter_of(way, patch, past_depth, max_cached) for way in (PYTHON, NATIVE)]
    running = {}
    for grown, gone, nodes, depth in stream:
        for name, more in grown.items():
            request = running.setdefault(name, make_request([1], **options))
            request.tokens += more
        tasks = [task_for(running[name], nodes=nodes, depth=depth) for name in grown]
        mine, native = (drafter.propose(tasks) for drafter in drafters)
        assert list(map(told_tree, native)) == list(map(told_tree, mine))
        for request, finished in [(running.pop(name), end) for name, end in gone if name in running]:
            request.finish_reason = "stop" if finished else None
            for drafter in drafters:
                drafter.close(request)
    assert sorted(drafters[1].past.texts.values()) == sorted(drafters[0].past.texts.values())


def drafter_of(way, patch: pytest.MonkeyPatch, depth: int = 24, max_cached: int = 10) -> SuffixDrafter:
    choose(way, patch)
    return SuffixDrafter(depth=depth, max_cached=max_cached)


def test_long_texts_with_phrases_that_come_again():
    chance = Random(5)
    phrases = [[chance.randrange(300) for _ in range(chance.randrange(2, 40))] for _ in range(40)]
    pair = Pair(24)
    for turn in range(60):
        pair.insert([token for _ in range(8) for token in chance.choice(phrases)])
        if turn >= 20:
            pair.remove(chance.randrange(20))
        for _ in range(10):
            begun = chance.choice(phrases) + chance.choice(phrases)[: chance.randrange(40)]
            width = chance.choice([1, 3])
            pair.check_guess(begun, GuessLimits(nodes=16, depth=10, width=width, factor=1.0, min_prob=0.1), 0.0)


@pytest.mark.parametrize("length", [1, 9, 30, 200])
def test_one_token_over_and_over(length):
    pair = Pair(24)
    pair.insert([7] * length)
    for width in (1, 2):
        pair.check_guess([7] * 40, GuessLimits(nodes=64, depth=64, width=width, factor=4.0, min_prob=0.0), 0.0)
    pair.remove(0)
    assert NATIVE.is_empty(pair.native)


CONFIGS = {
    "chains": {"method": "suffix"},
    "trees": {"method": "suffix", "tree_size": 12, "suffix_decoding_max_spec_factor": 3.0},
    "few past outputs": {"method": "suffix", "suffix_decoding_max_cached_requests": 2},
    "cascade": {"method": "cascade", "drafters": "suffix, ngram"},
    "merged": {"method": "merged", "drafters": "suffix, recycling", "tree_size": 8},
}
PROMPTS = ["def fibonacci(n):\n    ", "one two three one two three one two", "Once upon a time"]


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    """One for each way, since engines keep their drafters."""
    off = SpeculationConfig(method="none")
    return [Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=4096, speculation=off) for _ in "12"]


def drafts_of(engine: Engine, patch: pytest.MonkeyPatch, config: SpeculationConfig) -> tuple[list, list]:
    """Every draft of the suffix drafter in some runs, and the texts."""
    drafts, texts, propose = [], [], SuffixDrafter.propose
    patch.setattr(SuffixDrafter, "propose", lambda self, tasks: noted(drafts, propose(self, tasks)))
    for seed, temperature in [(1, 0.0), (2, 1.0), (1, 0.0)]:
        sampling = SamplingParams(max_new_tokens=40, temperature=temperature, seed=seed, ignore_eos=True)
        texts += [output.token_ids for output in engine.generate(PROMPTS, sampling, config)]
    return drafts, texts


def noted(drafts: list, trees: list) -> list:
    drafts += map(told_tree, trees)
    return trees


@pytest.mark.parametrize("name", CONFIGS)
def test_engine_runs_see_the_same_drafts(engines, name):
    config = SpeculationConfig.from_dict(CONFIGS[name])
    runs = []
    for way, engine in zip((PYTHON, NATIVE), engines, strict=True):
        with pytest.MonkeyPatch.context() as patch:
            choose(way, patch)
            runs.append(drafts_of(engine, patch, config))
    assert runs[0] == runs[1]
    assert sum(bool(tokens) for tokens, *_ in runs[0][0]) > 10


def test_the_extension_serves_unless_it_is_switched_off(monkeypatch):
    monkeypatch.delenv(native_runtime.VARIABLE, raising=False)
    assert suffix_trees().make is NATIVE.make
    monkeypatch.setenv(native_runtime.VARIABLE, "off")
    assert suffix_trees().make is SuffixTree


def test_without_it_python_serves(monkeypatch):
    monkeypatch.delenv(native_runtime.VARIABLE, raising=False)
    monkeypatch.setattr(native_runtime, "absence", lambda: "not installed")
    assert suffix_trees().make is SuffixTree


@pytest.mark.parametrize("wrong", [[2**31], [1, -(2**40)], [1, "2"], [1.5], 3])
def test_wrong_tokens_are_refused_and_change_nothing(wrong):
    tree = NATIVE.make(4)
    tree.insert([1, 2])
    before = tree.texts, tree.strings
    for deed in (tree.insert, lambda tokens: tree.extend(0, tokens)):
        with pytest.raises((ValueError, TypeError)):
            deed(wrong)
    assert (tree.texts, tree.strings) == before


def test_what_is_not_in_the_tree_is_refused():
    tree = NATIVE.make(4)
    gone = tree.insert([1, 2])
    tree.remove(gone)
    for deed in (lambda: tree.remove(gone), lambda: tree.extend(gone, [1]), lambda: tree.extend(7, [1])):
        with pytest.raises(ValueError, match="no such sequence"):
            deed()
    fair = GuessLimits(nodes=4, depth=4, width=1, factor=1.0, min_prob=0.0)
    with pytest.raises(ValueError, match="no such sequence"):
        NATIVE.guesses(tree, [(tree, [1], fair)])
    for wrong in ({"nodes": -1}, {"width": 0}, {"factor": float("inf")}, {"factor": float("nan")}):
        with pytest.raises(ValueError, match="limit"):
            NATIVE.best_guess(tree, [1], fair._replace(**wrong))
    for string in ([], [1] * 5):
        with pytest.raises(ValueError, match="depth"):
            tree.count(string)


def test_memory_stays_small_and_is_used_again():
    chance = Random(3)
    tree = NATIVE.make(24)
    outputs = [[int(chance.paretovariate(0.7)) % 50_000 for _ in range(500)] for _ in range(120)]
    numbers = [tree.insert(output) for output in outputs[:100]]
    full = tree.bytes
    assert full < 100 * 500 * 128
    for turn in range(300):
        tree.remove(numbers.pop(0))
        numbers.append(tree.insert(outputs[turn % 120]))
    assert tree.bytes < 2 * full
    for number in numbers:
        tree.remove(number)
    assert NATIVE.is_empty(tree)
