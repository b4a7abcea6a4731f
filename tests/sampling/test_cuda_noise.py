"""On a CUDA device a position has the noise it has on the CPU, and draws the same token."""

import pytest
import torch

from foredraft import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.noise import gumbel, gumbel_at
from foredraft.sampling.request_sampler import RequestSampler

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

WIDTH = 300
SHAPED = {
    "plain": {},
    "temperature": {"temperature": 0.7},
    "top k": {"top_k": 20},
    "top p": {"top_p": 0.8},
    "min p": {"min_p": 0.05},
    "typical p": {"typical_p": 0.9},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "bans": {"allowed_token_ids": list(range(0, WIDTH - 4, 2)), "min_new_tokens": 4, "logit_bias": {4: 2.0}},
    "greedy": {"temperature": 0.0, "repetition_penalty": 1.3},
}


def test_noise_is_that_of_the_cpu():
    here, there = gumbel(7, [0, 5, 2**31], WIDTH), gumbel(7, [0, 5, 2**31], WIDTH, "cuda")
    torch.testing.assert_close(there.cpu(), here, rtol=1e-6, atol=1e-6)


def test_single_tokens_have_the_noise_of_their_rows():
    tokens, positions = torch.arange(WIDTH, device="cuda"), torch.full((WIDTH,), 5, device="cuda")
    assert torch.equal(gumbel_at(7, positions, tokens), gumbel(7, [5], WIDTH, "cuda")[0])


@pytest.mark.parametrize("name", SHAPED)
def test_draws_are_those_of_the_cpu(name):
    params = SamplingParams(**({"temperature": 1.0} | SHAPED[name]))
    logits = 3 * torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(3))
    paths = [[], [7], [7, 9], [8]]
    drawn = {}
    for device in ("cpu", "cuda"):
        vocabulary = Vocabulary(rows=WIDTH, size=WIDTH - 4, eos_token_ids=(2,))
        sampler = RequestSampler(params, seed=11, prompt=[5, 7, 9, 5], vocabulary=vocabulary, bad_words=[[7, 11], [3]])
        scores = sampler.scores(logits.to(device), paths)
        laws = sampler.law(scores).cpu()
        drawn[device] = (sampler.draw(scores, [0, 1, 2, 1]), laws)
        sampler.commit([7, 9])
        drawn[device] += (sampler.draw(sampler.scores(logits.to(device), paths), [0, 1, 2, 1]),)
    assert drawn["cuda"][0] == drawn["cpu"][0] and drawn["cuda"][2] == drawn["cpu"][2]
    torch.testing.assert_close(drawn["cuda"][1], drawn["cpu"][1], rtol=1e-5, atol=1e-7)
