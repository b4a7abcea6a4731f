"""One request's sampler: rows are independent, paths are histories, noise belongs to positions."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.noise import gumbel
from foredraft.sampling.request_sampler import RequestSampler

V = 24
VOCABULARY = Vocabulary(rows=V, size=V - 2, eos_token_ids=(1,))
unpadded = Vocabulary(rows=V, size=V, eos_token_ids=(1,))
BAD_WORDS = [[4], [5, 6], [7, 7, 8]]
pytestmark = pytest.mark.usefixtures("way")

tokens = st.integers(0, V - 3)
paths = st.lists(st.lists(tokens, max_size=5), min_size=1, max_size=6)


@st.composite
def parameters(draw):
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.6, 1.0])),
        top_k=draw(st.sampled_from([0, 4])),
        top_p=draw(st.sampled_from([1.0, 0.7])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        typical_p=draw(st.sampled_from([1.0, 0.8])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.3])),
        logit_bias=draw(st.sampled_from([{}, {3: 2.0}])),
        min_new_tokens=draw(st.sampled_from([0, 3])),
    )


def sampler_of(params=None, prompt=(3, 9), seed=5, vocabulary=VOCABULARY, bad_words=(), **fields):
    params = params or SamplingParams(**fields)
    return RequestSampler(params, seed=seed, prompt=list(prompt), vocabulary=vocabulary, bad_words=list(bad_words))


def random_logits(seed, rows):
    return torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 2


@settings(max_examples=60, deadline=None)
@given(parameters(), paths, st.lists(tokens, max_size=4), st.integers(0, 99))
def test_rows_are_independent(params, paths, output, seed):
    sampler = sampler_of(params, bad_words=BAD_WORDS)
    sampler.commit(output)
    logits = random_logits(seed, len(paths))
    together = sampler.scores(logits, paths)
    alone = torch.cat([sampler.scores(logits[r : r + 1], [path]) for r, path in enumerate(paths)])
    assert torch.equal(together, alone)
    depths = [len(path) for path in paths]
    one_by_one = [sampler.draw(alone[r : r + 1], depths[r : r + 1])[0] for r in range(len(paths))]
    assert sampler.draw(together, depths) == one_by_one


@settings(max_examples=60, deadline=None)
@given(parameters(), paths, st.integers(0, 99))
def test_a_path_counts_as_the_same_tokens_committed(params, paths, seed):
    logits = random_logits(seed, len(paths))
    fresh = sampler_of(params, bad_words=BAD_WORDS)
    scores = fresh.scores(logits, paths)
    drawn = fresh.draw(scores, [len(path) for path in paths])
    for row, path in enumerate(paths):
        committed = sampler_of(params, bad_words=BAD_WORDS)
        committed.commit(path)
        after = committed.scores(logits[row : row + 1], [[]])
        assert torch.equal(after[0], scores[row])
        assert committed.draw(after, [0]) == [drawn[row]]


@settings(max_examples=30, deadline=None)
@given(parameters(), st.lists(tokens, max_size=6), st.integers(0, 99))
def test_commits_add_up_and_the_prompt_is_not_output(params, output, seed):
    one, several = sampler_of(params), sampler_of(params)
    one.commit(output)
    for token in output:
        several.commit([token])
    logits = random_logits(seed, 1)
    assert one.history == several.history == [3, 9, *output]
    assert torch.equal(one.scores(logits, [[]]), several.scores(logits, [[]]))


@settings(max_examples=30, deadline=None)
@given(parameters(), paths)
def test_logits_are_not_modified(params, paths):
    logits = random_logits(0, len(paths))
    before = logits.clone()
    sampler = sampler_of(params, bad_words=BAD_WORDS)
    scores = sampler.scores(logits, paths)
    processed = scores.clone()
    sampler.perturbed(scores, [0] * len(paths))
    assert torch.equal(logits, before)
    assert torch.equal(scores, processed)


@pytest.mark.parametrize("fields", [{"bad_words": [[5, 6]]}, {"temperature": 0.5}, {"presence_penalty": 0.5}])
def test_a_lone_processor_leaves_the_logits_alone(fields):
    sampler = sampler_of(vocabulary=unpadded, **fields)
    sampler.commit([5])
    logits = random_logits(0, 1)
    scores = sampler.scores(logits, [[]])
    assert torch.equal(logits, random_logits(0, 1))
    assert not torch.equal(scores, logits)


def test_half_precision_logits_are_processed_in_float32():
    logits = random_logits(0, 1).bfloat16()
    scores = sampler_of(temperature=0.3).scores(logits, [[]])
    assert scores.dtype == torch.float32
    assert torch.equal(scores[:, : V - 2], (logits.float() / 0.3)[:, : V - 2])


def test_the_callers_prompt_is_left_alone():
    prompt = [3, 9]
    sampler = RequestSampler(SamplingParams(), seed=0, prompt=prompt, vocabulary=VOCABULARY)
    sampler.commit([4])
    assert prompt == [3, 9]


CHANGES = [
    {"temperature": 0.5},
    {"repetition_penalty": 1.1},
    {"presence_penalty": 0.1},
    {"frequency_penalty": -0.1},
    {"logit_bias": {3: 1.0}},
    {"allowed_token_ids": (3, 4)},
    {"min_new_tokens": 1},
]


@pytest.mark.parametrize("fields", CHANGES)
def test_requests_that_may_move_the_argmax_are_not_plain(fields):
    assert not sampler_of(vocabulary=unpadded, **fields).plain_greedy


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.5, "top_k": 3}, {"logit_bias": {3: 0.0}}])
def test_greedy_requests_without_processors_are_plain(fields):
    sampler = sampler_of(vocabulary=unpadded, **fields)
    logits = random_logits(0, 2)
    assert sampler.plain_greedy
    assert sampler.draw(sampler.scores(logits, [[], [4]]), [0, 1]) == logits.argmax(-1).tolist()


def test_padding_and_bad_words_are_not_plain():
    assert not sampler_of().plain_greedy
    assert not sampler_of(vocabulary=unpadded, bad_words=[[5, 6]]).plain_greedy


def test_a_request_becomes_plain_once_its_minimum_is_written():
    sampler = sampler_of(vocabulary=unpadded, min_new_tokens=2)
    sampler.commit([5])
    assert not sampler.plain_greedy
    sampler.commit([5])
    assert sampler.plain_greedy


def test_a_minimum_without_endings_is_plain():
    endless = Vocabulary(rows=V, size=V)
    assert sampler_of(vocabulary=endless, min_new_tokens=2).plain_greedy


@pytest.mark.parametrize("fields", [{}, {"top_k": 5}])
def test_noise_belongs_to_the_absolute_position(fields):
    sampler = sampler_of(temperature=1.0, **fields)
    sampler.commit([4, 4, 4])
    scores = sampler.scores(random_logits(1, 2), [[], [6, 6]])
    expected = scores + gumbel(5, [5, 7], V)
    assert torch.equal(sampler.perturbed(scores, [0, 2]), expected)
    assert sampler.draw(scores, [0, 2]) == expected.argmax(-1).tolist()


def test_greedy_draws_take_the_lowest_of_tied_tokens():
    scores = torch.zeros(2, V)
    scores[1, [6, 11]] = 1.0
    sampler = sampler_of()
    assert sampler.perturbed(scores, [0, 0]) is scores
    assert sampler.draw(scores, [0, 0]) == [0, 6]
    assert sampler.law(scores).argmax(-1).tolist() == [0, 6]


@pytest.mark.parametrize("fields", [{}, {"temperature": 0.7, "top_k": 5}])
def test_the_law_is_a_float64_distribution_over_what_is_allowed(fields):
    sampler = sampler_of(**fields)
    scores = sampler.scores(random_logits(3, 4), [[]] * 4)
    law = sampler.law(scores)
    assert law.dtype == torch.float64
    assert_close(law.sum(-1), torch.ones(4, dtype=torch.float64))
    assert (law[scores.isinf()] == 0).all()
    assert law.count_nonzero(-1).tolist() == [5 if fields else 1] * 4


def test_draws_have_the_law():
    sampler = sampler_of(temperature=0.8, top_p=0.9, repetition_penalty=1.2)
    count = 20_000
    scores = sampler.scores(random_logits(4, 1), [[]])
    drawn = torch.tensor(sampler.draw(scores.expand(count, -1), list(range(count))))
    law = sampler.law(scores)[0]
    seen = torch.bincount(drawn, minlength=V)
    possible = law > 0
    assert seen[~possible].sum() == 0
    degrees = int(possible.sum()) - 1
    statistic = ((seen - law * count) ** 2 / (law * count))[possible].sum()
    assert statistic < degrees + 5 * (2 * degrees) ** 0.5


def test_coins_change_with_position_stream_and_index():
    sampler = sampler_of(temperature=1.0)
    coins = [sampler.uniform("accept", 0), sampler.uniform("accept", 1), sampler.uniform("residual", 0)]
    assert coins[0] == sampler.uniform("accept", 0)
    sampler.commit([4])
    coins.append(sampler.uniform("accept", 0))
    assert len(set(coins)) == 4


def test_logprobs_are_of_raw_logits_without_padding():
    logits = torch.zeros(V)
    logits[3], logits[7], logits[V - 1] = 2.0, 1.0, 50.0
    sampler = sampler_of(temperature=0.1, repetition_penalty=2.0)
    result = sampler.logprobs(logits, 7, 2)
    expected = logits[: V - 2].log_softmax(-1)
    assert (result.token, result.logprob) == (7, pytest.approx(expected[7].item()))
    assert result.top == [(3, pytest.approx(expected[3].item())), (7, pytest.approx(expected[7].item()))]
    assert sampler.logprobs(logits, 7, 0).top == []
    assert len(sampler.logprobs(logits, 7, 100).top) == V - 2
