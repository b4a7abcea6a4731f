"""Real checkpoints, real prompts: the text of plain decoding, token for token, with every drafter and acceptance rule.

A short set runs by default; FOREDRAFT_FULL=1 runs 50 prompts of 60 to 200 tokens, 128 new tokens each.
"""

import json
import os
from itertools import cycle, islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from foredraft import Engine, RequestOutput, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.sampling.request_sampler import RequestSampler

SHARED = Path(__file__).resolve().parents[3] / "shared"
TARGET, DRAFT = SHARED / "models" / "stories260K", SHARED / "models" / "llama2xs-279K"
PROMPTS = SHARED / "data" / "prompts"
FULL = os.environ.get("FOREDRAFT_FULL") == "1"
COUNT, NEW, ALONE = (50, 128, 50) if FULL else (8, 32, 2)
BATCH = 8
TIE = 1e-4  # of a perturbed score: below it the rounding of a forward with more rows may choose the other token

pytestmark = pytest.mark.skipif(
    not (TARGET.is_dir() and DRAFT.is_dir() and PROMPTS.is_dir()),
    reason=f"models and prompts are read from {SHARED}, which lacks them",
)

CHAIN, TREE = {"num_speculative_tokens": 6}, {"num_speculative_tokens": 5, "tree_size": 16, "tree_width": 3}
NGRAM = {"method": "ngram", "prompt_lookup_min": 1}
SUFFIX = {"method": "suffix"}
MODEL = {"method": "draft_model", "model": str(DRAFT)}
DRAFTERS = {
    f"{source['method']}-{name}": source | shape
    for source in (NGRAM, SUFFIX, MODEL)
    for name, shape in (("chain", CHAIN), ("tree", TREE))
}
CHAIN_RULES = ("standard", "block", "tree", "traversal", "lossy-typical")
TREE_RULES = ("tree", "traversal", "lossy-typical")
RULES = [("draft_model-chain", rule) for rule in CHAIN_RULES] + [("draft_model-tree", rule) for rule in TREE_RULES]
RULES += [("ngram-chain", "block"), ("suffix-tree", "traversal")]  # deterministic drafts under sampling rules

# Each prompt takes the next of these, so that a batch mixes them.
SAMPLINGS = [
    {"temperature": 1.0},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.5},
    {"temperature": 0.8, "top_k": 20, "min_p": 0.02},
    {"temperature": 1.0, "frequency_penalty": 0.4, "typical_p": 0.95},
]


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained(str(TARGET), dtype="fp32", max_batch=BATCH, cache_tokens=BATCH * 512, speculation=OFF)


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompts(engine) -> list[list[int]]:
    """Prompts of every file in turn, of 60 to 200 tokens."""
    files = [list(map(json.loads, path.read_text().splitlines())) for path in sorted(PROMPTS.glob("*.jsonl"))]
    texts = (file[index]["turns"][0] for index in range(COUNT) for file in files)
    encoded = filter(lambda tokens: len(tokens) >= 60, map(engine.encode, texts))
    return [tokens[: 60 + index * 37 % 141] for index, tokens in enumerate(islice(encoded, COUNT))]


@pytest.fixture(scope="module")
def greedy(engine, prompts) -> list[list[int]]:
    return tokens_of(engine.generate(prompts, SamplingParams(max_new_tokens=NEW)))


def tokens_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def drafted(engine: Engine, prompts, sampling, config: SpeculationConfig) -> list[list[int]]:
    """The tokens of all prompts; some of their drafts must have been accepted and no slot lost."""
    outputs = engine.generate(prompts, sampling, config)
    assert sum(output.statistics.accepted for output in outputs) > 0
    engine.target.pool.check_integrity([])
    return tokens_of(outputs)


def test_prompts_are_ragged(prompts):
    lengths = {len(prompt) for prompt in prompts}
    assert len(prompts) == COUNT and len(lengths) > COUNT // 2 and min(lengths) >= 60 and max(lengths) <= 200


def test_plain_decoding_is_what_transformers_writes(module, prompts, greedy):
    for prompt, tokens in zip(prompts, greedy, strict=True):
        written = module.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, pad_token_id=0)
        assert written[0, len(prompt) :].tolist() == tokens


@pytest.mark.parametrize("name", DRAFTERS)
def test_every_drafter_keeps_the_greedy_text(engine, prompts, greedy, name):
    config = SpeculationConfig(**DRAFTERS[name])
    assert drafted(engine, prompts, SamplingParams(max_new_tokens=NEW), config) == greedy


@pytest.mark.parametrize("name", DRAFTERS if FULL else ["ngram-tree", "draft_model-chain"])
def test_every_drafter_keeps_the_greedy_text_alone(engine, prompts, greedy, name):
    config = SpeculationConfig(**DRAFTERS[name])
    for prompt, tokens in list(zip(prompts, greedy, strict=True))[:ALONE]:
        assert tokens_of(engine.generate([prompt], SamplingParams(max_new_tokens=NEW), config)) == [tokens]


@pytest.mark.parametrize(("name", "rule"), RULES)
def test_every_rule_keeps_the_greedy_text(engine, prompts, greedy, name, rule):
    config = SpeculationConfig(**DRAFTERS[name], rejection_sample_method=rule)
    assert drafted(engine, prompts, SamplingParams(max_new_tokens=NEW), config) == greedy


@pytest.mark.parametrize("name", DRAFTERS)
def test_a_seed_gives_the_same_text_with_every_drafter(engine, module, prompts, seeded, name):
    sampling, plain = seeded
    texts = drafted(engine, prompts, sampling, SpeculationConfig(**DRAFTERS[name]))
    differing = [place for place in range(COUNT) if texts[place] != plain[place]]
    for place in differing:
        gap = score_gap(engine, module, prompts[place], sampling[place], plain[place], texts[place])
        assert gap < TIE, f"prompt {place} differs where the tokens' scores are {gap} apart"
    assert len(differing) <= 1


@torch.inference_mode()
def score_gap(engine, module, prompt, params, plain, text) -> float:
    """How far the scores of the first two tokens that differ lie apart, noise included, by transformers' own logits."""
    at = next(i for i, (wanted, got) in enumerate(zip(plain, text, strict=False)) if wanted != got)
    sampler = RequestSampler(params, seed=params.seed, prompt=prompt, vocabulary=engine.target.vocabulary)
    sampler.commit(plain[:at])
    logits = module(torch.tensor([prompt + plain[:at]])).logits[0, -1:]
    scores = sampler.perturbed(sampler.scores(logits, [[]]), [0])[0]
    return (scores[plain[at]] - scores[text[at]]).abs().item()


@pytest.fixture(scope="module")
def seeded(engine, prompts) -> tuple[list[SamplingParams], list[list[int]]]:
    """Sampling parameters of each prompt, and what plain decoding writes under them."""
    kinds = islice(cycle(SAMPLINGS), len(prompts))
    sampling = [SamplingParams(max_new_tokens=NEW, seed=seed, **kind) for seed, kind in enumerate(kinds)]
    return sampling, tokens_of(engine.generate(prompts, sampling))
