"""Lookahead: what the window asks of the target, what the pool makes of it, and that no token changes."""

import random
from dataclasses import replace
from math import exp

import pytest
from draft_tasks import make_request, task_for

from foredraft import Engine, SamplingParams, SlotsError, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import Observation, make_drafter
from foredraft.drafters.lookahead import LookaheadDrafter
from foredraft.drafters.lookahead_window import LookaheadWindow
from foredraft.drafters.ngram_pool import NgramPool
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.model.slot_pool import SlotTable

VOCABULARY = 23
GREEDY = SamplingParams(max_new_tokens=60)
SEEDED = SamplingParams(max_new_tokens=60, temperature=1.0, seed=7)
PROMPTS = [[1, 2, 3], list(range(20)) * 2, [5], [9, 9, 4, 11, 3]]
TREE = {"method": "lookahead", "tree_size": 20, "tree_width": 7}


def law(history):
    """Logits that mostly depend on the last token alone, so that n-grams found ahead of the text come true."""
    rng = random.Random(history[-1] * 7 + (history[-2] % 3 if len(history) > 1 else 0))
    return [rng.gauss(0, 3) for _ in range(VOCABULARY)]


def scripted(**options) -> ScriptedTarget:
    return ScriptedTarget(law, vocabulary=VOCABULARY, **options)


def next_token(history) -> int:
    scores = law(history)
    return scores.index(max(scores))


def lookahead(*, width=2, ngram=3, guesses=4, ends=(), context_length=4096) -> LookaheadDrafter:
    return LookaheadDrafter(
        width=width, ngram=ngram, guesses=guesses, ends=frozenset(ends), context_length=context_length
    )


def drawing(*tokens):
    """Tokens to draw, in order."""
    return iter(tokens).__next__


def window_of(columns, *, ngram, ends=(), draw=None) -> LookaheadWindow:
    window = LookaheadWindow(width=len(columns), ngram=ngram, draw=drawing(*(c[0] for c in columns)), ends=ends)
    window.columns, window.draw = [list(column) for column in columns], draw or window.draw
    return window


def observed(request, tree: DraftTree, successors, committed=(0,)) -> Observation:
    """One step as the engine tells it: everything rejected."""
    return Observation(
        request=request,
        table=SlotTable(),
        first=0,
        tree=tree,
        verdict=Verdict([], 0),
        committed=list(committed),
        successors=[[token] for token in successors],
    )


# The window


def test_the_first_row_is_a_chain_and_columns_hang_from_it():
    window = window_of([[1, 4, 7], [2, 5, 8], [3, 6, 9]], ngram=4)
    tree = DraftTree.from_paths([[11, 12], [13]], "pool", 9)
    window.hang(tree, "lookahead")
    assert tree.tokens[3:] == window.tokens and tree.probes == 9
    assert set(tree.drafters[3:]) == {"lookahead"}
    for column in range(3):
        for row in range(3):
            node = 3 + 3 * column + row
            assert tree.depths[node] == 1 + column + row
            assert tree.path_tokens(node) == [1, 2, 3][: column + 1] + window.columns[column][1 : row + 1]
    assert window.depth == max(tree.depths)
    assert (tree.guesses.tokens, tree.guesses.parents) == ([11, 12, 13], [-1, 0, -1])


def test_columns_fill_then_yield_ngrams_and_shift():
    window = LookaheadWindow(width=2, ngram=4, draw=drawing(1, 2), ends=())
    assert window.columns == [[1], [2]]
    assert window.advance([3, 4]) == [] and window.columns == [[1, 3], [2, 4]]
    assert window.advance([90, 5, 91, 6]) == [] and window.columns == [[1, 3, 5], [2, 4, 6]]
    assert window.advance([90, 91, 7, 92, 93, 8]) == [(1, 3, 5, 7), (2, 4, 6, 8)]
    assert window.columns == [[3, 5, 7], [4, 6, 8]]
    assert window.advance([90, 91, 9, 92, 93, 10]) == [(3, 5, 7, 9), (4, 6, 8, 10)]


def test_a_window_of_bigrams_yields_from_the_first_step():
    window = LookaheadWindow(width=3, ngram=2, draw=drawing(1, 2, 3), ends=())
    assert window.advance([4, 5, 6]) == [(1, 4), (2, 5), (3, 6)]
    assert window.columns == [[4], [5], [6]]


def test_tokens_that_end_a_text_are_told_but_not_continued():
    window = window_of([[1, 3], [2, 4]], ngram=3, ends={0}, draw=drawing(8))
    assert window.advance([90, 0, 91, 5]) == [(1, 3, 0), (2, 4, 5)]
    assert window.columns == [[3, 8], [4, 5]]


# The pool


def test_the_latest_ngrams_come_first_and_the_stalest_leaves():
    pool = NgramPool(ngram=3, capacity=2)
    for ngram in [(1, 2, 3), (1, 4, 5), (2, 4, 5), (1, 2, 3), (1, 6, 7)]:
        pool.add(ngram)
    assert pool.after(1) == [(6, 7), (2, 3)]
    assert pool.after(2) == [(4, 5)] and pool.after(9) == []


def test_a_growing_text_is_read_once_and_whole():
    rng = random.Random(5)
    text = [rng.randrange(4) for _ in range(80)]
    at_once, bit_by_bit = NgramPool(ngram=4, capacity=3), NgramPool(ngram=4, capacity=3)
    at_once.extend(text)
    length = 0
    while length < len(text):
        length += rng.randrange(4)
        bit_by_bit.extend(text[:length])
    assert at_once.followers == bit_by_bit.followers
    whole = {tuple(text[i : i + 4]) for i in range(len(text) - 3)}
    assert {(first, *rest) for first in range(4) for rest in at_once.after(first)} <= whole
    assert at_once.after(text[-4])[0] == tuple(text[-3:])


# Guesses


def guesses_of(tokens, *, nodes=64, depth=64, drafter=None, **speculation):
    drafter = drafter or lookahead()
    [tree] = drafter.propose([task_for(make_request(tokens, **speculation), nodes=nodes, depth=depth)])
    guesses = tree.guesses
    return [tuple(guesses.path_tokens(node)) for node in range(len(guesses))]


TEXT = [1, 2, 3, 9, 1, 2, 4, 9, 1, 5, 6, 9, 1]


def test_a_tree_merges_the_ngrams_of_the_root():
    assert guesses_of(TEXT, tree_size=9) == [(5,), (5, 6), (2,), (2, 4), (2, 3)]


def test_a_chain_is_the_latest_ngram():
    assert guesses_of(TEXT) == [(5,), (5, 6)]


@pytest.mark.parametrize(
    ("limits", "paths"),
    [
        ({"depth": 1}, [(5,), (2,)]),
        ({"nodes": 3}, [(5,), (5, 6), (2,)]),
        ({"tree_width": 1}, [(5,), (5, 6)]),
        ({"drafter": lookahead(guesses=1)}, [(5,), (5, 6)]),
        ({"drafter": lookahead(guesses=0)}, []),
        ({"drafter": lookahead(ngram=2)}, [(5,), (2,)]),
    ],
)
def test_guesses_keep_to_limits(limits, paths):
    assert guesses_of(TEXT, tree_size=9, **limits) == paths


def test_ngrams_of_the_window_are_drafted():
    drafter, request = lookahead(width=2, ngram=3), make_request([1, 2, 3])
    task = task_for(request)
    window = drafter.search_of(request).window
    window.columns = [[4, 5], [6, 7]]
    [tree] = drafter.propose([task])
    assert len(tree.guesses) == 0 and tree.tokens == [4, 5, 6, 7]
    drafter.observe([observed(request, tree, [90, 91, 8, 92, 9])])
    assert window.columns == [[5, 8], [7, 9]]
    request.tokens += [6]
    [tree] = drafter.propose([task])
    assert tree.guesses.tokens == [7, 9] and tree.tokens[2:] == [5, 8, 7, 9]


def test_steps_without_the_window_leave_it_as_it_is():
    drafter, request = lookahead(), make_request([1, 2, 3])
    other = DraftTree.chain([4, 5], "other")
    drafter.observe([observed(request, other, [6, 7, 8])])  # never asked
    [tree] = drafter.propose([task_for(request)])
    tokens = drafter.search_of(request).window.tokens
    drafter.observe([observed(request, other, [6, 7, 8])])
    drafter.observe([observed(request, DraftTree(), [6])])
    strange = replace(tree, tokens=[token + 1 for token in tree.tokens])
    drafter.observe([observed(request, strange, range(len(tree) + 1))])
    assert drafter.search_of(request).window.tokens == tokens
    assert drafter.propose([task_for(request)])[0].tokens == tree.tokens
    drafter.observe([observed(request, tree, range(len(tree) + 1))])
    assert drafter.search_of(request).window.tokens != tokens


def test_a_window_starts_with_the_prompt_as_the_seed_draws_it():
    def start(seed, prompt=(5, 6, 7, 0), ends=(0,)):
        request = make_request(list(prompt))
        request.seed = seed
        return lookahead(width=12, ends=ends).search_of(request).window.tokens

    assert start(1) == start(1) != start(2)
    assert set(start(1)) <= {5, 6, 7}
    assert start(1, prompt=(0,)) == [0] * 12


def test_close_leaves_nothing_behind():
    drafter, request = lookahead(), make_request([1, 1, 1])
    drafter.propose([task_for(request)])
    assert drafter.searches
    drafter.close(request)
    assert not drafter.searches
    drafter.close(request)


# In the engine


class Listening(LookaheadDrafter):
    """Compares what it is told with the target asked directly, and can be silent in some steps."""

    silent = staticmethod(lambda tokens: False)
    checked = carried = asked = 0

    def propose(self, tasks):
        trees = super().propose(tasks)
        self.asked += len(tasks)
        for place, task in enumerate(tasks):
            assert len(trees[place].guesses) <= task.nodes
            assert max(trees[place].guesses.depths, default=0) <= task.depth
            if self.silent(task.request.tokens):
                trees[place] = DraftTree()
        return trees

    def observe(self, observations):
        for seen in observations:
            before = seen.request.tokens[: -len(seen.committed)]
            self.carried += seen.tree.probes > 0
            for row, [token] in enumerate(seen.successors):
                assert token == next_token((*before, *seen.tree.path_tokens(row - 1)))
                self.checked += row > len(seen.tree) - seen.tree.probes
        super().observe(observations)


def listening_engine(target, config, **options) -> tuple[Engine, Listening]:
    made = make_drafter(config, target)
    drafter = Listening(
        width=made.width,
        ngram=made.ngram,
        guesses=made.guesses,
        ends=made.ends,
        context_length=made.context_length,
    )
    engine = Engine(target, **options)
    engine.drafters[config.drafter_key] = drafter
    return engine, drafter


SHAPES = {
    "chain": {"method": "lookahead"},
    "tree": TREE,
    "bigrams": TREE | {"lookahead_ngram": 2},
    "one column": TREE | {"lookahead_window": 1, "lookahead_ngram": 6},
    "wide": TREE | {"lookahead_window": 20, "lookahead_ngram": 3, "lookahead_guesses": 2},
    "longer than the draft": TREE | {"lookahead_ngram": 8, "num_speculative_tokens": 2},
    "no guesses": TREE | {"lookahead_guesses": 0},
}


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_probe_is_told_what_follows_the_root_and_its_ancestors(shape, sampling):
    """Requests of different lengths side by side: positions, masks and texts are those of each alone."""
    config = SpeculationConfig(**SHAPES[shape])
    params = [replace(sampling, max_new_tokens=length) for length in (60, 1, 2, 37)]
    plain = [
        Engine(scripted(), speculation=OFF).generate([p], s)[0].token_ids for p, s in zip(PROMPTS, params, strict=True)
    ]
    engine, drafter = listening_engine(scripted(), config)
    together = engine.generate(PROMPTS, params, config)
    assert [output.token_ids for output in together] == plain
    assert drafter.checked > 20 and not drafter.searches
    assert (engine.statistics.accepted > 0) is (config.lookahead_guesses > 0)
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize("shape", ["chain", "tree", "bigrams"])
def test_the_window_finds_what_the_text_has_not_shown(shape, monkeypatch):
    """With n-grams of the text withheld, what is accepted came from the window."""
    monkeypatch.setattr(NgramPool, "extend", lambda pool, tokens: None)
    config = SpeculationConfig(**SHAPES[shape])
    sampling = SamplingParams(max_new_tokens=100, seed=0)  # the window begins with tokens drawn by it
    engine, _ = listening_engine(scripted(), config)
    [output] = engine.generate([[1, 2, 3]], sampling, config)
    assert output.statistics.accepted > 10
    engine, drafter = listening_engine(scripted(), config)
    monkeypatch.setattr(drafter, "observe", lambda observations: None)
    [output] = engine.generate([[1, 2, 3]], sampling, config)
    assert output.statistics.drafted == 0


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_drafter_that_is_not_always_asked_changes_no_token(sampling):
    config = SpeculationConfig(**TREE)
    plain = Engine(scripted(), speculation=OFF).generate(PROMPTS, sampling)
    engine, drafter = listening_engine(scripted(), config)
    drafter.silent = lambda tokens: len(tokens) // 5 % 2
    outputs = engine.generate(PROMPTS, sampling, config)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert 0 < drafter.carried < drafter.asked and engine.statistics.accepted > 0


def test_a_prompt_in_chunks():
    rng = random.Random(1)
    prompt = [rng.randrange(VOCABULARY) for _ in range(1300)]
    config = SpeculationConfig(**TREE)
    plain = Engine(scripted(), speculation=OFF).generate([prompt, [4]], GREEDY)
    engine, drafter = listening_engine(scripted(), config)
    outputs = engine.generate([prompt, [4]], GREEDY, config)
    assert [output.token_ids for output in outputs] == [output.token_ids for output in plain]
    assert drafter.checked > 20 and min(output.statistics.accepted for output in outputs) > 0


def test_no_probe_stands_past_the_context():
    class Bounded(ScriptedTarget):
        farthest = 0

        def forward(self, plan, features=()):
            self.farthest = max(self.farthest, plan.positions.max().item())
            return super().forward(plan, features)

    config = SpeculationConfig(**TREE, lookahead_window=9)
    target = Bounded(law, vocabulary=VOCABULARY, context_length=64)
    [plain] = Engine(scripted(context_length=64), speculation=OFF).generate(
        [[1, 2, 3]], SamplingParams(max_new_tokens=100)
    )
    [output] = Engine(target, speculation=OFF).generate([[1, 2, 3]], SamplingParams(max_new_tokens=100), config)
    assert output.token_ids == plain.token_ids and len(output.token_ids) == 61
    assert 50 < target.farthest < 64


def test_the_scheduler_counts_the_slots_of_the_window():
    config = SpeculationConfig(**TREE, lookahead_window=15, lookahead_ngram=5)
    needed = 3 + GREEDY.max_new_tokens + config.scratch_nodes + 15 * 4
    with pytest.raises(SlotsError):
        Engine(scripted(slots=needed - 1), speculation=OFF).generate([[1, 2, 3]], GREEDY, config)
    target = scripted(slots=needed)
    [output] = Engine(target, speculation=OFF).generate([[1, 2, 3]], GREEDY, config)
    assert output.token_ids == Engine(scripted(), speculation=OFF).generate([[1, 2, 3]], GREEDY)[0].token_ids
    target.pool.check_integrity([])


def test_a_text_ends_where_it_ends_without_drafts():
    config = SpeculationConfig(**TREE)
    full = Engine(scripted(), speculation=OFF).generate([[1, 2, 3]], SEEDED)[0].token_ids
    ends = full[40:41]
    [plain] = Engine(scripted(eos=ends), speculation=OFF).generate([[1, 2, 3]], SEEDED)
    [output] = Engine(scripted(eos=ends), speculation=OFF).generate([[1, 2, 3]], SEEDED, config)
    assert output.token_ids == plain.token_ids == full[: full.index(ends[0]) + 1]
    assert output.finish_reason == "stop"


MARKOV = {0: [2.0, 0.5, 0.0], 1: [0.0, 1.5, 1.0], 2: [0.3, 0.0, 1.2]}
LIMIT = 27.9  # chi-squared with 6 degrees of freedom: passed once in 10,000 fair runs


@pytest.mark.parametrize(("rule", "tree_size"), [("standard", 0), ("traversal", 6)])
def test_other_rules_keep_the_law(rule, tree_size):
    """One-hot drafts under rules that accept by coins: transitions still follow the target."""
    config = SpeculationConfig(
        method="lookahead",
        lookahead_window=2,
        lookahead_ngram=3,
        tree_size=tree_size,
        rejection_sample_method=rule,
        draft_sample_method="greedy",
    )
    engine = Engine(ScriptedTarget(lambda history: MARKOV[history[-1]], vocabulary=3), speculation=OFF)
    sampling = SamplingParams(max_new_tokens=50, temperature=1.0, seed=11, n=80)
    counts = {state: [0, 0, 0] for state in MARKOV}
    for output in engine.generate([[0]], sampling, config):
        for state, token in zip([0, *output.token_ids], output.token_ids, strict=False):
            counts[state][token] += 1
    total = 0.0
    for state, logits in MARKOV.items():
        weights = [exp(logit) for logit in logits]
        for seen, weight in zip(counts[state], weights, strict=True):
            expected = sum(counts[state]) * weight / sum(weights)
            total += (seen - expected) ** 2 / expected
    assert engine.statistics.accepted > 500 and total < LIMIT


@pytest.fixture(scope="module")
def tiny() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_tiny_writes_what_it_writes_without_drafts(tiny, sampling):
    questions = [
        "Write a Python function that reverses a list.",
        "Say a b a b a b.",
        "Hi",
        "How many pens are 12 pens?",
    ]
    prompts = [tiny.chat([{"role": "user", "content": question}]) for question in questions]
    config, short = SpeculationConfig(**TREE), replace(sampling, max_new_tokens=24)
    plain = [tiny.generate([prompt], short)[0].token_ids for prompt in prompts]
    together = tiny.generate(prompts, short, config)
    assert [output.token_ids for output in together] == plain
    assert tiny.generate([prompts[0]], short, config)[0].token_ids == plain[0]
    assert sum(output.statistics.accepted for output in together) > 0
    tiny.target.pool.check_integrity([])
