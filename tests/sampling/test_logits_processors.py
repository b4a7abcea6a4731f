"""Processors do what transformers' processors do, row by row of a draft tree."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from foredraft.core.errors import ConfigError
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.request_sampler import RequestSampler

V = 64
PROMPT = [3, 9, 9, 14, 3, 60]
OUTPUT = [5, 3, 5, 21]
PATHS = [[], [7], [7, 5], [7, 5, 7], [21], [21, 21]]
EOS = 2
BAD_WORDS = [[11], [5, 7], [21, 21, 30], [3, 5, 21, 40], [EOS]]


def vocabulary(rows=V, size=V):
    return Vocabulary(rows=rows, size=size, eos_token_ids=(EOS,))


def sampler_of(params=None, output=OUTPUT, prompt=PROMPT, vocab=None, bad_words=(), **fields):
    params = params or SamplingParams(**fields)
    sampler = RequestSampler(params, seed=1, prompt=prompt, vocabulary=vocab or vocabulary(), bad_words=bad_words)
    sampler.commit(output)
    return sampler


def random_logits(seed, rows=6, width=V):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 3


def by_transformers(processors, logits):
    rows = []
    for path, row in zip(PATHS, logits, strict=True):
        ids = torch.tensor([PROMPT + OUTPUT + path])
        rows.append(hf.LogitsProcessorList(processors)(ids, row[None].clone()))
    return torch.cat(rows)


class AllowedOnly(hf.PrefixConstrainedLogitsProcessor):
    def __init__(self, allowed):
        super().__init__(lambda batch, ids: allowed, num_beams=1)


bias = {5: 4.0, 6: -100.0, 21: 1.5}
CASES = {
    "bias": (
        {"logit_bias": bias},
        lambda: [hf.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})],
    ),
    "repetition": ({"repetition_penalty": 1.3}, lambda: [hf.RepetitionPenaltyLogitsProcessor(1.3)]),
    "bad words": ({"bad_words": BAD_WORDS}, lambda: [hf.NoBadWordsLogitsProcessor(BAD_WORDS, eos_token_id=EOS)]),
    "min new tokens": (
        {"min_new_tokens": 6, "stop_token_ids": (8,)},
        lambda: [hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), 6, [EOS, 8])],
    ),
    "allowed": ({"allowed_token_ids": (1, 2, 33)}, lambda: [AllowedOnly([1, 2, 33])]),
    "temperature": ({"temperature": 0.7}, lambda: [hf.TemperatureLogitsWarper(0.7)]),
    "top k": ({"temperature": 1.0, "top_k": 5}, lambda: [hf.TopKLogitsWarper(5)]),
    "top k of one": ({"temperature": 1.0, "top_k": 1}, lambda: [hf.TopKLogitsWarper(1)]),
    "top k of too many": ({"temperature": 1.0, "top_k": 500}, lambda: [hf.TopKLogitsWarper(500)]),
    "top p": ({"temperature": 1.0, "top_p": 0.8}, lambda: [hf.TopPLogitsWarper(0.8)]),
    "tiny top p": ({"temperature": 1.0, "top_p": 1e-6}, lambda: [hf.TopPLogitsWarper(1e-6)]),
    "min p": ({"temperature": 1.0, "min_p": 0.1}, lambda: [hf.MinPLogitsWarper(0.1)]),
    "typical p": ({"temperature": 1.0, "typical_p": 0.6}, lambda: [hf.TypicalLogitsWarper(0.6)]),
    "all": (
        {
            "logit_bias": bias,
            "repetition_penalty": 0.8,
            "bad_words": BAD_WORDS,
            "min_new_tokens": 5,
            "allowed_token_ids": tuple(range(40)),
            "temperature": 1.4,
            "top_k": 20,
            "top_p": 0.9,
            "min_p": 0.02,
            "typical_p": 0.85,
        },
        lambda: [
            hf.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()}),
            hf.RepetitionPenaltyLogitsProcessor(0.8),
            hf.NoBadWordsLogitsProcessor(BAD_WORDS, eos_token_id=EOS),
            hf.MinNewTokensLengthLogitsProcessor(len(PROMPT), 5, [EOS]),
            AllowedOnly(list(range(40))),
            hf.TemperatureLogitsWarper(1.4),
            hf.TopKLogitsWarper(20),
            hf.TopPLogitsWarper(0.9),
            hf.MinPLogitsWarper(0.02),
            hf.TypicalLogitsWarper(0.85),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_transformers(case, seed):
    fields, processors = CASES[case]
    logits = random_logits(seed)
    scores = sampler_of(**fields).scores(logits, PATHS)
    assert_close(scores, by_transformers(processors(), logits), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("spread", [0.3, 4.0])
@pytest.mark.parametrize("p", [0.3, 0.95])
def test_top_p_of_a_wide_vocabulary_is_that_of_transformers(seed, spread, p):
    # Flat rows need more candidates than the quick search holds, steep ones do not.
    logits = random_logits(seed, rows=2, width=5000) * spread / 3
    sampler = sampler_of(temperature=1.0, top_p=p, vocab=vocabulary(5000, 5000))
    expected = hf.TopPLogitsWarper(p)(None, logits)
    # transformers adds 5000 float32 probabilities up from the least: a token at the very border may differ.
    differing = (sampler.scores(logits, [[], []]).isinf() != expected.isinf()).sum().item()
    assert differing <= 1
    assert expected.isinf().any()


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"typical_p": 0.9}])
def test_flat_and_steep_rows_are_cut_alike_together_and_alone(fields):
    logits = random_logits(0, rows=3, width=5000) * torch.tensor([[0.1], [1.0], [4.0]])
    sampler = sampler_of(temperature=1.0, vocab=vocabulary(5000, 5000), **fields)
    alone = [sampler.scores(row[None], [[]]) for row in logits]
    assert torch.equal(sampler.scores(logits, [[]] * 3), torch.cat(alone))


@pytest.mark.parametrize("fields", [{"top_p": 1 - 1e-9}, {"typical_p": 1 - 1e-9}])
def test_a_share_just_below_one_cuts_rounding_errors_at_most(fields):
    logits = random_logits(0, rows=50)
    cut = sampler_of(temperature=1.0, **fields).scores(logits, [[]] * 50).isinf()
    assert logits.softmax(-1)[cut].sum() < 1e-6


def test_presence_and_frequency_count_the_output_and_the_path():
    logits = random_logits(0)
    scores = sampler_of(presence_penalty=0.5, frequency_penalty=0.25).scores(logits, PATHS)
    for row, path in enumerate(PATHS):
        written = OUTPUT + path
        penalties = torch.tensor([0.5 * (token in written) + 0.25 * written.count(token) for token in range(V)])
        assert_close(scores[row], logits[row] - penalties)


def test_presence_and_frequency_follow_the_repetition_penalty():
    logits = random_logits(1)
    fields = {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": -0.5}
    penalised = by_transformers([hf.RepetitionPenaltyLogitsProcessor(1.5)], logits)
    expected = sampler_of(presence_penalty=1.0, frequency_penalty=-0.5).scores(penalised, PATHS)
    assert_close(sampler_of(**fields).scores(logits, PATHS), expected)


def test_padded_rows_are_never_written():
    logits = torch.zeros(1, V)
    logits[0, 60:] = 50.0
    scores = sampler_of(vocab=vocabulary(V, 60)).scores(logits, [[]])
    assert scores[0, 60:].isinf().all()
    assert scores[0, :60].isfinite().all()


def test_minimum_bans_every_ending_until_it_is_reached_on_the_path_too():
    fields = {"min_new_tokens": 5, "stop_token_ids": (8,)}
    banned = sampler_of(**fields).scores(torch.zeros(2, V), [[], [7]]).isinf()
    assert banned.nonzero().tolist() == [[0, EOS], [0, 8]]


def test_an_ignored_eos_is_never_banned():
    banned = sampler_of(min_new_tokens=99, stop_token_ids=(8,), ignore_eos=True).scores(torch.zeros(1, V), [[]]).isinf()
    assert banned.nonzero().tolist() == [[0, 8]]


@pytest.mark.parametrize("fields", [{"top_p": 0.9}, {"top_k": 1}, {"min_p": 1.0}, {"typical_p": 0.1}])
def test_greedy_requests_skip_truncation_as_transformers_does(fields):
    logits = random_logits(2)
    assert torch.equal(sampler_of(**fields).scores(logits, PATHS), logits)


@pytest.mark.parametrize("fields", [{"top_p": 0.3}, {"top_k": 1}, {"min_p": 1.0}, {"typical_p": 1e-9}])
@pytest.mark.parametrize("logits", [torch.zeros(1, V), torch.full((1, V), -1e6), torch.eye(V)[:1] * 1e6])
def test_truncation_keeps_a_token(fields, logits):
    scores = sampler_of(temperature=1e-40, **fields).scores(logits, [[]])
    assert scores.isfinite().any()
    assert not scores.isnan().any()


def test_tied_tokens_are_cut_or_kept_together():
    logits = torch.tensor([[2.0] * 10 + [0.0] * (V - 10)])
    for fields in ({"top_k": 3}, {"top_p": 0.1}):
        kept = sampler_of(temperature=1.0, **fields).scores(logits, [[]]).isfinite()
        assert kept.nonzero()[:, 1].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"allowed_token_ids": (1, 99)}, "allowed_token_ids holds token id 99"),
        ({"allowed_token_ids": (62,)}, "allowed_token_ids holds token id 62"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias holds token id -1"),
        ({"stop_token_ids": (60,)}, "stop_token_ids holds token id 60"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(fields, named):
    with pytest.raises(ConfigError, match=f"{named}; the vocabulary has 60"):
        sampler_of(**fields, vocab=vocabulary(V, 60))


@pytest.mark.parametrize(
    ("fields", "bad_words"),
    [
        ({"allowed_token_ids": (EOS,), "min_new_tokens": 1}, []),
        ({"allowed_token_ids": (5, 6)}, [[5], [6]]),
        ({"allowed_token_ids": (5, 6)}, [[5], [5, 6]]),
    ],
)
def test_bans_that_could_leave_no_token_are_refused(fields, bad_words):
    with pytest.raises(ConfigError, match="allowed_token_ids"):
        sampler_of(**fields, bad_words=bad_words)
