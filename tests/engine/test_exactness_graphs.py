"""With forwards captured and replayed, target and drafters on grids: the text is that of forwards as they are."""

import pytest
from plain_texts import plain_texts
from recorded_graphs import RecordedGraphs

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import AUTO, OFF
from foredraft.model.devices import CpuDevice
from foredraft.model.graphed_model import GraphedModel

PROMPTS = ["def add(a, b):\n    return", "Question: Tom has 3 apples and buys 5 more. How many has he?\nAnswer:", "Hi"]
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=24, ignore_eos=True),
    "seeded": SamplingParams(max_new_tokens=24, ignore_eos=True, temperature=1.0, seed=7),
}
TREE = {"num_speculative_tokens": 4, "tree_size": 9}
CONFIGS = {
    "none": {"method": "none"},
    "suffix": {"method": "suffix"},
    "recycling": {"method": "recycling", **TREE},
    "lookahead": {"method": "lookahead"},
    "self": {"method": "self_speculation", "self_exit_layer": 3},
    "draft model": {"method": "draft_model", "model": "tiny-draft"},
    "draft tree": {"method": "draft_model", "model": "tiny-draft", **TREE},
    "eagle3": {"method": "eagle3", **TREE},
    "medusa": {"method": "medusa", **TREE},
    "auto": {"method": AUTO},
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuDevice, "decoder", lambda self, model: GraphedModel(model, RecordedGraphs))
        engine = Engine.from_pretrained(
            "tiny", dtype="fp32", device="cpu", native="off", cache_tokens=2048, speculation=OFF
        )
        for config in CONFIGS.values():
            if config["method"] != AUTO:
                engine.drafter_for(SpeculationConfig(**config))
        engine.options_of(SpeculationConfig(method=AUTO))
    engine.generate(PROMPTS, SAMPLINGS["greedy"])
    return engine


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    engine = Engine.from_pretrained(
        "tiny", dtype="fp32", device="cpu", native="off", cache_tokens=2048, speculation=OFF
    )
    return plain_texts(engine, PROMPTS, SAMPLINGS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_graphs_change_no_token(engine, plain, name, sampling):
    graphs = engine.target.model.decoder.shelves[engine.target.model.layers].graphs
    before = graphs.replays
    outputs = engine.generate(PROMPTS, SAMPLINGS[sampling], SpeculationConfig(**CONFIGS[name]))
    assert [output.token_ids for output in outputs] == plain[sampling]
    assert graphs.replays > before
    engine.target.pool.check_integrity([])
