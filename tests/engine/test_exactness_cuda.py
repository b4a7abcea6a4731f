"""The embedded family in fp32 on a CUDA device: every method, rule and `auto` write what plain decoding does there."""

import pytest
import torch
from plain_texts import plain_texts

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import AUTO, OFF
from foredraft.engine.cost_measuring import measured_costs
from foredraft.engine.step_costs import option_label

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

TOKENS = 40
PROMPTS = [
    "Write a Python function that reverses a list.",
    "Write this form as JSON.\n\nname: Ada Berg\nage: 30\ncity: Oslo",
    "Passage:\nThe king had three sons. The youngest was kind to birds. He left home.\n\nRepeat the passage.",
    "A box holds 12 pens. How many pens do 5 boxes hold?",
    "Hi",
]
TREE = {"num_speculative_tokens": 5, "tree_size": 12}
DRAFT = {"method": "draft_model", "model": "tiny-draft"}
CONFIGS = {
    "ngram tree": {"method": "ngram", "prompt_lookup_min": 1, **TREE},
    "suffix chain": {"method": "suffix"},
    "suffix tree": {"method": "suffix", "suffix_decoding_max_spec_factor": 3.0, **TREE},
    "recycling tree": {"method": "recycling", **TREE},
    "lookahead": {"method": "lookahead"},
    "lookahead tree": {"method": "lookahead", "tree_size": 20, "tree_width": 7},
    "prediction": {"method": "prediction", "prediction": "The king had three sons. The youngest left home."},
    "self, early exit": {"method": "self_speculation", "self_exit_layer": 3},
    "self, layers left out": {"method": "self_speculation", "self_skip": "attention 3, mlp 5"},
    "self, searching": {"method": "self_speculation", "self_search_seconds": 0.2},
    "draft chain": DRAFT,
    "draft chain, early stop": DRAFT | {"draft_confidence_threshold": 0.5},
    "draft tree": DRAFT | TREE,
    "draft by strings": DRAFT | {"vocabulary_matching": "strings"},
    "draft by tokens": DRAFT | {"vocabulary_matching": "tokens"},
    "medusa chain": {"method": "medusa", "num_speculative_tokens": 4},
    "medusa tree": {"method": "medusa", "num_speculative_tokens": 4, "tree_size": 15},
    "medusa fixed tree": {"method": "medusa", "speculative_token_tree": "mc_sim_7b_63", "tree_size": 20},
    "eagle3 chain": {"method": "eagle3"},
    "eagle3 tree": {"method": "eagle3", **TREE},
    "eagle3 fixed tree": {"method": "eagle3", "speculative_token_tree": "eagle_25"},
    "mtp chain": {"method": "mtp", "num_speculative_tokens": 3},
    "mtp tree": {"method": "mtp", **TREE},
    "dflash chain": {"method": "dflash", "num_speculative_tokens": 7},
    "dflash tree": {"method": "dflash", "num_speculative_tokens": 7, "tree_size": 24},
    "cascade": {"method": "cascade", "drafters": "suffix,eagle3,draft_model:tiny-draft", **TREE},
    "merged": {"method": "merged", "drafters": "draft_model:tiny-draft, dflash", **TREE},
}
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=TOKENS),
    "seeded": SamplingParams(max_new_tokens=TOKENS, temperature=1.0, seed=7),
    "shaped": SamplingParams(
        max_new_tokens=TOKENS, temperature=0.8, top_p=0.9, frequency_penalty=0.5, bad_words=["the"], seed=3, logprobs=2
    ),
    "guided": SamplingParams(max_new_tokens=TOKENS, temperature=1.0, guided_regex="[a-z ]{20,60}", seed=4),
}
RULES = [("draft chain", rule) for rule in ("standard", "block", "tree", "traversal", "lossy-typical")]
RULES += [
    ("eagle3 tree", "tree"),
    ("medusa tree", "traversal"),
    ("dflash chain", "block"),
    ("draft by tokens", "standard"),
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", device="cuda", cache_tokens=8192, speculation=OFF)


@pytest.fixture(scope="module")
def prompts(engine) -> list[list[int]]:
    return [engine.chat([{"role": "user", "content": prompt}]) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain(engine, prompts) -> dict[str, list[list[int]]]:
    """Each prompt alone, nothing drafted."""
    return plain_texts(engine, prompts, SAMPLINGS)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_drafter_changes_no_token(engine, prompts, plain, name, sampling):
    config = SpeculationConfig.from_dict(CONFIGS[name])
    together = engine.generate(prompts, SAMPLINGS[sampling], config)
    assert [output.token_ids for output in together] == plain[sampling]
    assert sampling != "greedy" or sum(output.statistics.accepted for output in together) > 0
    alone = engine.generate(prompts[:1], SAMPLINGS[sampling], config)
    assert alone[0].token_ids == plain[sampling][0]
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_a_rule_keeps_the_greedy_text(engine, prompts, plain, name, rule):
    config = SpeculationConfig.from_dict(CONFIGS[name] | {"rejection_sample_method": rule})
    together = engine.generate(prompts, SAMPLINGS["greedy"], config)
    assert [output.token_ids for output in together] == plain["greedy"]


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_a_sampling_rule_runs_through(engine, prompts, name, rule):
    config = SpeculationConfig.from_dict(CONFIGS[name] | {"rejection_sample_method": rule})
    together = engine.generate(prompts, SAMPLINGS["seeded"], config)
    again = engine.generate(prompts, SAMPLINGS["seeded"], config)
    assert [output.token_ids for output in together] == [output.token_ids for output in again]
    assert sum(output.statistics.accepted for output in together) > 0


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_auto_changes_no_token(engine, prompts, plain, sampling):
    for count in (1, 3, len(prompts)):
        outputs = engine.generate(prompts[:count], SAMPLINGS[sampling], SpeculationConfig(method=AUTO))
        assert [output.token_ids for output in outputs] == plain[sampling][:count]


def test_the_text_is_that_of_the_cpu(prompts, plain):
    here = Engine.from_pretrained("tiny", dtype="fp32", device="cpu", native="off", cache_tokens=4096, speculation=OFF)
    assert [output.token_ids for output in here.generate(prompts, SAMPLINGS["greedy"])] == plain["greedy"]


def test_bfloat16_runs_through(prompts):
    engine = Engine.from_pretrained("tiny", device="cuda", cache_tokens=8192)
    assert engine.target.model.dtype is torch.bfloat16
    for sampling in SAMPLINGS.values():
        outputs = engine.generate(prompts, sampling)
        assert all(output.token_ids for output in outputs)
    engine.target.pool.check_integrity([])


def test_costs_are_measured_in_the_time_of_the_device(engine):
    config = SpeculationConfig.from_dict(CONFIGS["draft chain"])
    costs = measured_costs(engine, [config], seconds=2.0)
    assert all(cost.seconds > 1e-5 for cost in costs.forwards)
    assert all(cost.seconds > 1e-5 for cost in costs.drafts[option_label(config)])
