"""Log-probabilities of the prompt: whatever the chunks and the batch, those of one forward over all of it."""

import random

import pytest
import torch

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 7
PROMPTS = [[1, 2, 3], [4], list(range(7)) * 3]


def law(history):
    rng = random.Random(hash(history[-3:]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


@pytest.mark.parametrize("rows", [512, 5])
@pytest.mark.parametrize("method", ["none", "ngram"])
def test_each_prompt_token_is_scored_given_those_before(rows, method):
    target, speculation = ScriptedTarget(law, vocabulary=VOCABULARY), SpeculationConfig(method=method)
    engine = Engine(target, speculation=speculation, step_rows=rows)
    sampling = SamplingParams(max_new_tokens=6, prompt_logprobs=2)
    for prompt, output in zip(PROMPTS, engine.generate(PROMPTS, sampling), strict=True):
        assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
        for place, entry in enumerate(output.prompt_logprobs[1:], start=1):
            expected = torch.tensor(law(tuple(prompt[:place]))).log_softmax(-1)
            assert entry.token == prompt[place] and len(entry.top) == 2
            assert entry.logprob == pytest.approx(expected[prompt[place]].item(), abs=1e-5)


def test_the_text_is_the_same_with_them():
    engine = Engine(ScriptedTarget(law, vocabulary=VOCABULARY), speculation=OFF)
    scored = engine.generate(PROMPTS, SamplingParams(max_new_tokens=9, prompt_logprobs=0))
    assert [o.token_ids for o in scored] == [
        o.token_ids for o in engine.generate(PROMPTS, SamplingParams(max_new_tokens=9))
    ]
    assert all(output.prompt_logprobs is None for output in engine.generate(PROMPTS, SamplingParams(max_new_tokens=1)))
