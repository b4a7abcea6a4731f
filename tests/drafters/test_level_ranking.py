"""Rows ranked by the extension, from raw logits, and by torch, from the values of all tokens, give the same tokens."""

import pytest
import torch

from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters import level_ranking
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.level_ranking import Best, PlainRows, plainly_ranked
from foredraft.sampling import noise
from foredraft.sampling.request_sampler import RequestSampler

if noise.native is None:
    pytest.skip("foredraft_native is not installed or switched off", allow_module_level=True)

V, PADDED, PROMPT = 900, 920, [5, 4, 3]
IDS = torch.arange(0, V, 3).flip(0)
WAYS = {
    "greedy": ({}, {}),
    "seeded": ({"temperature": 1.0}, {}),
    "cool": ({"temperature": 0.6}, {}),
    "likeliest": ({"temperature": 0.6}, {"draft_sample_method": "greedy"}),
}


def rows_of(way: str, seed: int, logits: torch.Tensor) -> PlainRows:
    params, speculation = WAYS[way]
    params = SamplingParams(**params)
    request = Request(prompt=PROMPT, params=params, speculation=SpeculationConfig(**speculation), seed=seed)
    sampler = RequestSampler(params, seed=seed, prompt=PROMPT, vocabulary=Vocabulary(rows=V, size=V))
    task = DraftTask(
        request=request, speculation=request.speculation, sampler=sampler, table=None, nodes=64, depth=len(logits)
    )
    return PlainRows(task, logits, [*range(len(logits))])


def best(ways: list[str], width: int, count: int, ids: torch.Tensor | None) -> Best:
    generator = torch.Generator().manual_seed(count)
    rows = [rows_of(way, seed, torch.randn(4, width, generator=generator) * 3) for seed, way in enumerate(ways)]
    return plainly_ranked(rows, count, ids)


@pytest.mark.parametrize("ways", [*([way] for way in WAYS), [*WAYS]], ids=[*WAYS, "together"])
@pytest.mark.parametrize("count", [1, 3, 10])
@pytest.mark.parametrize(("width", "ids"), [(V, None), (PADDED, None), (V - 30, None), (len(IDS), IDS)])
def test_the_extension_and_torch_rank_alike(monkeypatch, ways, count, width, ids):
    gains, tokens = best(ways, width, count, ids)
    monkeypatch.setattr(level_ranking, "natively_chosen", lambda logits: False)
    wanted, same = best(ways, width, count, ids)
    assert tokens == same
    torch.testing.assert_close(torch.tensor(gains), torch.tensor(wanted), rtol=0, atol=1e-3)


def test_no_noise_of_whole_rows_is_made(monkeypatch):
    monkeypatch.setattr(RequestSampler, "noise_rows", None)
    assert len(best(["seeded"], V, 3, None)[1]) == 4
