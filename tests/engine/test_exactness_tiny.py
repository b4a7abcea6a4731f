"""The embedded family in fp32: every drafter writes what plain decoding and transformers write."""

import pytest
import torch
from plain_texts import plain_texts
from transformers import AutoModelForCausalLM

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.model.int8_weights import INT8_FILE, read_int8
from foredraft.model.loading import embedded_folder, find_checkpoint

TOKENS = 40
QUESTIONS = [
    "Write a Python function that reverses a list.",
    "Write this form as JSON.\n\nname: Ada Berg\nage: 30\ncity: Oslo",
    "Passage:\nThe king had three sons. The youngest was kind to birds. He left home.\n\nRepeat the passage.",
    "A box holds 12 pens. How many pens do 5 boxes hold?",
]
DRAFT = {"method": "draft_model", "model": "tiny-draft"}
CONFIGS = {
    "ngram chain": {"method": "ngram", "prompt_lookup_min": 1},
    "ngram tree": {"method": "ngram", "prompt_lookup_min": 1, "tree_size": 12},
    "suffix chain": {"method": "suffix"},
    "suffix tree": {"method": "suffix", "tree_size": 12, "suffix_decoding_max_spec_factor": 3.0},
    "draft chain": DRAFT,
    "draft chain, early stop": DRAFT | {"draft_confidence_threshold": 0.5},
    "draft tree": DRAFT | {"tree_size": 12},
    "medusa chain": {"method": "medusa", "num_speculative_tokens": 4},
    "medusa tree": {"method": "medusa", "num_speculative_tokens": 4, "tree_size": 15},
    "eagle3 chain": {"method": "eagle3"},
    "eagle3 tree": {"method": "eagle3", "tree_size": 15},
    "eagle3 fixed tree": {"method": "eagle3", "speculative_token_tree": "eagle_25"},
    "eagle3 of another domain": {"method": "eagle3", "model": "tiny-eagle3-reasoning"},
    "mtp chain": {"method": "mtp", "num_speculative_tokens": 3},
    "mtp tree": {"method": "mtp", "num_speculative_tokens": 4, "tree_size": 12},
    "dflash chain": {"method": "dflash", "num_speculative_tokens": 7},
    "dflash tree": {"method": "dflash", "num_speculative_tokens": 7, "tree_size": 24},
}
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=TOKENS),
    "seeded": SamplingParams(max_new_tokens=TOKENS, temperature=1.0, seed=7),
    "shaped": SamplingParams(max_new_tokens=TOKENS, temperature=0.8, top_p=0.9, frequency_penalty=0.5, seed=3),
}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", cache_tokens=4096, speculation=OFF)


@pytest.fixture(scope="module")
def prompts(engine) -> list[list[int]]:
    return [engine.chat([{"role": "user", "content": question}]) for question in QUESTIONS]


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
    assert sum(output.statistics.accepted for output in together) > 0
    engine.target.pool.check_integrity([])


def test_plain_is_what_transformers_writes(engine, prompts, plain):
    checkpoint = find_checkpoint("tiny")
    module = AutoModelForCausalLM.from_config(checkpoint.config, dtype=torch.float32)
    module.load_state_dict(read_int8(embedded_folder("tiny") / INT8_FILE, torch.float32), strict=False)
    module.tie_weights()
    stops = list(engine.target.vocabulary.eos_token_ids)
    for prompt, tokens in zip(prompts, plain["greedy"], strict=True):
        ids = torch.tensor([prompt])
        written = module.eval().generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=TOKENS,
            eos_token_id=stops,
            pad_token_id=5,
        )
        assert written[0, len(prompt) :].tolist() == tokens


def test_the_family_stays_small():
    folders = [embedded_folder(name) for name in ("tiny", "tiny-draft")]
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    assert size < 50e6
    assert all((folder / "README.md").exists() for folder in folders)
