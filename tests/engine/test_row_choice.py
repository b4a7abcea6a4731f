"""A forward that chooses tokens itself writes what its logits would have; these leave it only where somebody asks."""

from contextlib import contextmanager

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.engine import step

pytest.importorskip("foredraft_native", reason="foredraft-native is not installed")

PROMPTS = ["def mean(values):", "Once upon a time there was a clockmaker", '{"name": "Ada", "age": 30}\n{"name":']
PARAMS = {
    "greedy": [{}] * 3,
    "seeded": [{"temperature": 1.0, "seed": 3}] * 3,
    "cool": [{"temperature": 0.6, "seed": 3}, {"temperature": 1.0, "seed": 4}, {"temperature": 1.3, "seed": 5}],
    "greedy and seeded": [{}, {"temperature": 1.0, "seed": 3}, {}],
    "cut off": [{"temperature": 1.0, "seed": 3, "top_k": 5}] * 3,
    "scored": [{"logprobs": 2}, {}, {}],
    "prompts scored": [{"prompt_logprobs": 1}, {}, {}],
}
ALONE = ("greedy", "seeded", "cool")  # no logits leave
CONFIGS = {
    "plain": {"method": "none"},
    "chain": {"method": "draft_model", "model": "tiny-draft"},
    "tree": {"method": "draft_model", "model": "tiny-draft", "tree_size": 9, "tree_width": 3},
    "laws": {"method": "draft_model", "model": "tiny-draft", "rejection_sample_method": "standard"},
    "probes": {"method": "lookahead"},
    "successors": {"method": "recycling"},
    "auto": {"drafters": "suffix, draft_model:tiny-draft"},  # named: else costs measured here decide who takes part
}
SILENT = ("plain", "chain", "tree", "auto")


@pytest.fixture(scope="module")
def engine() -> Engine:
    made = Engine.from_pretrained("tiny", dtype="bf16", native="auto", threads=2, cache_tokens=4096)
    made.know_costs([SpeculationConfig.from_dict(CONFIGS["auto"])])  # by forwards whose logits nobody is to count
    return made


@pytest.fixture
def rows(engine, monkeypatch) -> list[int]:
    """Rows of logits that left each forward."""
    seen, forward = [], engine.target.forward

    def watched(plan, features=()):
        logits, states = forward(plan, features)
        seen.append(len(logits))
        return logits, states

    monkeypatch.setattr(engine.target, "forward", watched)
    return seen


def written(engine: Engine, config: SpeculationConfig, name: str) -> list[tuple]:
    params = [SamplingParams(max_new_tokens=24, ignore_eos=True, **one) for one in PARAMS[name]]
    with engine.cold():
        outputs = engine.generate(PROMPTS, params, config)
    return [(output.token_ids, output.logprobs, output.prompt_logprobs) for output in outputs]


@contextmanager
def left_to_the_engine(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(step, "choice_of", lambda batch: None)
        yield


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("way", CONFIGS)
def test_texts_are_those_of_the_logits(engine, rows, monkeypatch, way, name):
    config = SpeculationConfig.from_dict(CONFIGS[way])
    texts = written(engine, config, name)
    assert any(rows) is not (way in SILENT and name in ALONE)
    with left_to_the_engine(monkeypatch):
        assert written(engine, config, name) == texts
