"""On the native path speculation changes no bit in bf16 either: drafted texts in company are plain ones alone."""

import os

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig

pytest.importorskip("foredraft_native", reason="foredraft-native is not installed")

FULL = bool(os.environ.get("FOREDRAFT_FULL"))
PROMPTS = [
    "def mean(values):",
    "Once upon a time there was a clockmaker",
    'Write this form as JSON.\n\nname: "Ada"\nage: 30',
    "A baker sells 24 rolls in the morning",
    "Passage:\nGlass is made by melting sand with soda and lime.\n\nRepeat the passage.",
    "The",
    "import os\nimport sys\n\n",
    "Five friends share the cost of a boat.",
]
TOKENS = 96 if FULL else 32
DRAFTERS = {
    "ngram": {"method": "ngram"},
    "suffix": {"method": "suffix"},
    "draft model": {"method": "draft_model", "model": "tiny-draft"},
    "draft model tree": {"method": "draft_model", "model": "tiny-draft", "tree_size": 12, "tree_width": 3},
    "medusa tree": {"method": "medusa", "tree_size": 15, "tree_width": 3},
    "eagle3": {"method": "eagle3"},
    "eagle3 tree": {"method": "eagle3", "tree_size": 20, "tree_width": 4},
    "mtp": {"method": "mtp"},
    "dflash tree": {"method": "dflash", "tree_size": 20, "tree_width": 4},
    "auto": {},
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="bf16", native="auto", threads=2, cache_tokens=8192)


def texts(engine: Engine, config: SpeculationConfig, prompts: list[str], temperature: float) -> list[list[int]]:
    seeds = {prompt: index for index, prompt in enumerate(PROMPTS)}
    params = [
        SamplingParams(max_new_tokens=TOKENS, temperature=temperature, seed=seeds[prompt], ignore_eos=True)
        for prompt in prompts
    ]
    with engine.cold():
        return [output.token_ids for output in engine.generate(prompts, params, config)]


@pytest.fixture(scope="module", params=[0.0, 1.0], ids=["greedy", "seeded"])
def plain(engine, request) -> tuple[float, list[list[int]]]:
    off = SpeculationConfig(method="none")
    return request.param, [texts(engine, off, [prompt], request.param)[0] for prompt in PROMPTS]


@pytest.mark.parametrize("name", DRAFTERS)
def test_texts_are_the_plain_ones(engine, plain, name):
    temperature, wanted = plain
    assert engine.target.model.path.startswith("native path")
    config = SpeculationConfig.from_dict(DRAFTERS[name])
    assert texts(engine, config, PROMPTS, temperature) == wanted
    assert texts(engine, config, PROMPTS[:1], temperature) == wanted[:1]
