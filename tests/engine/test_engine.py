"""The loop on a scripted target: text must not depend on drafts, batches, chunks or slots."""

import random

import pytest

from foredraft import ConfigError, Engine, PromptError, SamplingParams, SlotsError, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import registry
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 7


def law(history):
    """Logits that depend on the last three tokens, without ties."""
    rng = random.Random(hash(history[-3:]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


def engine(**options) -> Engine:
    return Engine(ScriptedTarget(law, vocabulary=VOCABULARY, slots=2048), **({"speculation": OFF} | options))


def random_tree(task) -> DraftTree:
    """A draft without any sense: most of it is rejected, some of it accepted."""
    rng = random.Random(len(task.request.tokens) * 31 + task.request.id)
    tree = DraftTree()
    for _ in range(rng.randint(0, task.nodes)):
        parent = rng.randint(-1, len(tree) - 1)
        depth = 1 if parent == -1 else tree_depth(tree, parent) + 1
        token = rng.randrange(VOCABULARY)
        taken = {t for t, p in zip(tree.tokens, tree.parents, strict=True) if p == parent}
        if depth <= task.depth and token not in taken:
            tree.add(token, parent, "random")
    return tree


def tree_depth(tree: DraftTree, node: int) -> int:
    return len(tree.path(node))


@pytest.fixture
def random_drafter(monkeypatch):
    monkeypatch.setitem(registry, "random", lambda config, target: ScriptedDrafter(random_tree))
    return SpeculationConfig(method="random", num_speculative_tokens=6, tree_size=20)


PROMPTS = [[1, 2, 3], [4], list(range(7)) * 9, [5, 5, 5, 5, 5], [0, 6], [2] * 33, [3, 1], [6, 4, 2, 0, 1]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", ["random", "ngram", "suffix"])
@pytest.mark.parametrize("batch", [1, 8])
def test_text_is_the_same_with_any_draft(random_drafter, temperature, method, batch):
    sampling = SamplingParams(max_new_tokens=60, temperature=temperature, seed=3)
    plain = engine(max_batch=1).generate(PROMPTS, sampling)
    config = SpeculationConfig(method=method, num_speculative_tokens=6, tree_size=20)
    drafting = engine(max_batch=batch)
    drafted = drafting.generate(PROMPTS, sampling, config)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
    assert drafting.statistics.accepted > 0
    drafting.target.pool.check_integrity([])


def test_drafts_save_forwards(random_drafter):
    sampling = SamplingParams(max_new_tokens=60)
    drafting = engine()
    output = drafting.generate(PROMPTS[0], sampling, SpeculationConfig(method="ngram"))[0]
    statistics = output.statistics
    assert statistics.rounds < 60 and statistics.tau == pytest.approx(60 / statistics.rounds)
    assert statistics.committed == 60 == statistics.rounds + statistics.accepted
    assert len(drafting.target.forwards) == statistics.rounds


def test_ragged_requests_keep_their_own_parameters(random_drafter):
    """Different lengths, samplers, drafters and rules in one batch give what each gives alone."""
    sampling = [
        SamplingParams(max_new_tokens=5 + 7 * i, temperature=i % 3, seed=i, top_k=3 * (i % 2), presence_penalty=i / 8)
        for i in range(8)
    ]
    methods = ["none", "ngram", "suffix", "random"] * 2
    rules = ["match", "match", "tree", "tree", "match", "traversal", "standard", "match"]
    configs = [
        SpeculationConfig(method=m, rejection_sample_method=r, draft_sample_method="greedy" if r != "match" else None)
        for m, r in zip(methods, rules, strict=True)
    ]
    together = engine(max_batch=8).generate(PROMPTS, sampling, configs)
    for i, output in enumerate(together):
        if sampling[i].temperature == 0 or rules[i] == "match":
            alone = engine().generate(PROMPTS[i], sampling[i])[0]
            assert output.token_ids == alone.token_ids
        assert len(output.token_ids) == sampling[i].max_new_tokens


def test_a_long_prompt_is_computed_in_chunks():
    long = [random.Random(1).randrange(VOCABULARY) for _ in range(1500)]
    chunked = engine()
    output = chunked.generate([long, [1, 2]], SamplingParams(max_new_tokens=20))
    assert max(chunked.target.forwards) <= 512 and len(chunked.target.forwards) > 3
    assert output[1].token_ids == engine().generate([1, 2], SamplingParams(max_new_tokens=20))[0].token_ids


def test_more_requests_than_fit_wait_their_turn():
    crowded = Engine(ScriptedTarget(law, vocabulary=VOCABULARY, slots=64), max_batch=8, speculation=OFF)
    sampling = SamplingParams(max_new_tokens=20)
    outputs = crowded.generate([[i % 7, 1] for i in range(12)], sampling)
    alone = [engine().generate([i % 7, 1], sampling)[0].token_ids for i in range(12)]
    assert [o.token_ids for o in outputs] == alone
    crowded.target.pool.check_integrity([])


def test_n_continuations_have_their_own_seeds():
    outputs = engine().generate([[1], [2]], SamplingParams(max_new_tokens=12, temperature=1.0, seed=9, n=3))
    assert [(o.index, o.sample) for o in outputs] == [(i, s) for i in range(2) for s in range(3)]
    assert len({tuple(o.token_ids) for o in outputs[:3]}) == 3
    again = engine().generate([2], SamplingParams(max_new_tokens=12, temperature=1.0, seed=outputs[4].seed))
    assert again[0].token_ids == outputs[4].token_ids


@pytest.mark.parametrize("method", ["none", "ngram", "random"])
def test_a_stop_token_inside_an_accepted_run_ends_the_text(random_drafter, method):
    config = SpeculationConfig(method=method, num_speculative_tokens=6, tree_size=20)
    full = engine().generate([1, 2, 3], SamplingParams(max_new_tokens=60))[0].token_ids
    for place in range(1, 20, 3):
        token = full[place]
        sampling = SamplingParams(max_new_tokens=60, stop_token_ids=(token,))
        output = engine().generate([1, 2, 3], sampling, config)[0]
        assert output.token_ids == full[: full.index(token) + 1] and output.finish_reason == "stop"
        assert output.statistics.committed == len(output.token_ids)


def test_logprobs_are_those_of_plain_decoding(random_drafter):
    sampling = SamplingParams(max_new_tokens=30, logprobs=3, temperature=1.0, seed=2)
    plain = engine().generate([1, 2, 3], sampling)[0]
    drafted = engine().generate([1, 2, 3], sampling, random_drafter)[0]
    assert drafted.logprobs == plain.logprobs and len(plain.logprobs) == 30
    assert all(
        len(entry.top) == 3 and entry.token == t for entry, t in zip(plain.logprobs, plain.token_ids, strict=True)
    )


def test_a_stream_tells_the_same_text_and_can_be_dropped(random_drafter):
    streaming = engine()
    events = list(streaming.stream(PROMPTS, SamplingParams(max_new_tokens=25), random_drafter))
    outputs = [event for event in events if hasattr(event, "token_ids")]
    for output in outputs:
        mine = [event for event in events if hasattr(event, "tokens") and event.index == output.index]
        assert [token for event in mine for token in event.tokens] == output.token_ids
        assert [source for event in mine for source in event.sources] == output.sources
        assert mine[-1].finish_reason == output.finish_reason
    stream = streaming.stream(PROMPTS, SamplingParams(max_new_tokens=25), random_drafter)
    next(stream)
    stream.close()
    assert streaming.scheduler.idle
    streaming.target.pool.check_integrity([])


def test_refusals_leave_nothing_behind():
    small = Engine(ScriptedTarget(law, vocabulary=VOCABULARY, slots=40, context_length=50), speculation=OFF)
    with pytest.raises(PromptError, match="empty|no tokens"):
        small.generate([[1], []])
    with pytest.raises(PromptError, match="context of scripted holds 50"):
        small.generate([1] * 50)
    with pytest.raises(PromptError, match="token"):
        small.generate([1, 99])
    with pytest.raises(SlotsError, match="needs 55 cache slots .* has 40"):
        small.generate([[1], [1] * 30], SamplingParams(max_new_tokens=200))
    with pytest.raises(ConfigError, match="99"):
        small.generate([[1], [2]], [SamplingParams(), SamplingParams(allowed_token_ids=(99,))])
    assert small.scheduler.idle


def test_the_context_bounds_the_text():
    bounded = Engine(ScriptedTarget(law, vocabulary=VOCABULARY, context_length=50), speculation=OFF)
    output = bounded.generate([1] * 40, SamplingParams(max_new_tokens=500), SpeculationConfig(method="ngram"))[0]
    assert len(output.token_ids) == 10 and output.finish_reason == "length"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"method": "ngram", "speculative_token_tree": "[[0]]"}, "ngram drafts no fixed trees"),
        (
            {"method": "suffix", "rejection_sample_method": "standard", "draft_sample_method": "probabilistic"},
            "suffix has no law to sample drafts from",
        ),
    ],
)
def test_a_key_the_drafter_would_pass_over_is_refused(config, message):
    with pytest.raises(ConfigError, match=message):
        engine().generate([1, 2], SamplingParams(max_new_tokens=2), SpeculationConfig.from_dict(config))
