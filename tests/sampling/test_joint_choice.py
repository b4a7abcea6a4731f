"""Tokens chosen for several requests at once are those that each would choose alone, bit for bit."""

import pytest
import torch

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.joint_choice import drawn_together, greedy_together, noise_together
from foredraft.sampling.request_sampler import RequestSampler

pytestmark = pytest.mark.usefixtures("way")
WIDTH = 300
VOCABULARY = Vocabulary(rows=WIDTH, size=WIDTH, eos_token_ids=())


def sampler(seed: int, written: int, **params) -> RequestSampler:
    history = [index % WIDTH for index in range(written)]
    return RequestSampler(
        SamplingParams(**({"temperature": 1.0} | params)), seed=seed, prompt=history, vocabulary=VOCABULARY
    )


def requests(**params) -> list[tuple[RequestSampler, torch.Tensor, list[int]]]:
    generator = torch.Generator().manual_seed(5)
    shapes = [(3, 10, [0]), (3, 11, [0, 1, 1, 2]), (2**62, 1, [0, 1])]
    return [
        (sampler(seed, written, **params), torch.randn(len(depths), WIDTH, generator=generator).to(dtype), depths)
        for (seed, written, depths), dtype in zip(shapes, (torch.float32, torch.float32, torch.float32), strict=True)
    ]


@pytest.mark.parametrize("temperatures", [(1.0, 1.0, 1.0), (1.0, 0.3, 2.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_drawn_tokens(temperatures, dtype):
    rows = [logits.to(dtype) for _, logits, _ in requests()]
    depths = [own for *_, own in requests()]
    shapes = [(3, 10), (3, 11), (2**62, 1)]
    made = [
        [sampler(seed, written, temperature=t) for (seed, written), t in zip(shapes, temperatures, strict=True)]
        for _ in range(2)
    ]
    assert all(one.plain for one in made[0])
    together = drawn_together(made[0], rows, depths)
    for tokens, one, own, places in zip(together, made[1], rows, depths, strict=True):
        assert tokens == one.draw(one.scores(own, [[]] * len(own)), places)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_noise_that_drafters_have_asked_for_changes_nothing(temperature):
    fresh, asked = ([one for one, *_ in requests(temperature=temperature)] for _ in range(2))
    rows, depths = [logits for _, logits, _ in requests()], [own for *_, own in requests()]
    for one, logits, own in zip(asked, rows, depths, strict=True):
        one.noise_rows(own[:2], logits)
    assert all(one.noise for one in asked)
    assert drawn_together(asked, rows, depths) == drawn_together(fresh, rows, depths)
    drawn = [one.draw(one.scores(own, [[]] * len(own)), at) for one, own, at in zip(asked, rows, depths, strict=True)]
    assert drawn == drawn_together(fresh, rows, depths)


def test_rows_of_a_type_that_native_code_does_not_read():
    fresh, again = ([one for one, *_ in requests()] for _ in range(2))
    rows, depths = [logits.half() for _, logits, _ in requests()], [own for *_, own in requests()]
    assert drawn_together(fresh, rows, depths) == drawn_together(again, [own.float() for own in rows], depths)
    assert greedy_together(rows) == greedy_together([own.float() for own in rows])


def test_noise_is_computed_once_a_position_and_kept():
    (one, logits, depths), *_ = requests()
    first = noise_together([one], [depths], logits.float())
    kept = dict(one.noise)
    assert torch.equal(noise_together([one], [[0]], logits.float()), first[:1])
    assert kept.keys() == one.noise.keys() == {10}
    assert torch.equal(first[0], sampler(3, 10).noise_rows([0], logits.float())[0])


def test_greedy_tokens():
    rows = [logits for _, logits, _ in requests()]
    assert greedy_together(rows) == [own.argmax(-1).tolist() for own in rows]


def test_what_needs_more_than_logits_and_noise_is_not_plain():
    assert (
        sampler(1, 3).plain and sampler(1, 3, temperature=0.5).plain and sampler(1, 3, temperature=0.5).divisor == 0.5
    )
    for params in ({"top_k": 3}, {"top_p": 0.5}, {"repetition_penalty": 1.5}, {"logit_bias": {1: 2.0}}):
        assert not sampler(1, 3, **params).plain
