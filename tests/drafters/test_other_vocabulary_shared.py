"""Published checkpoints of different vocabularies: the text of plain decoding, and drafts that are accepted."""

from pathlib import Path

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF

SHARED = Path(__file__).resolve().parents[3] / "shared" / "models"
STORIES, LETTERS = SHARED / "stories260K", SHARED / "babyllama-936K"
PAIRS = {"letters for stories": (str(STORIES), str(LETTERS)), "stories for tiny": ("tiny", str(STORIES))}
PROMPTS = [
    "Once upon a time, there was a little",
    "Tom and Lily went to the park. They",
    "One day, a boy named Tim found a caf\u00e9 \U0001f600 and",
    "The dog said",
]
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=28),
    "seeded": SamplingParams(max_new_tokens=28, temperature=1.0, seed=3),
}
WAYS = {
    "tokens": {"vocabulary_matching": "tokens"},
    "tokens, tree": {"vocabulary_matching": "tokens", "tree_size": 12},
    "strings": {"vocabulary_matching": "strings"},
    "strings, tree": {"vocabulary_matching": "strings", "tree_size": 12},
}

pytestmark = pytest.mark.skipif(
    not (STORIES.is_dir() and LETTERS.is_dir()), reason=f"models are read from {SHARED}, which lacks them"
)


@pytest.fixture(scope="module", params=PAIRS)
def pair(request) -> tuple[Engine, str, dict]:
    """An engine over the target, the draft model's folder, and what plain decoding writes."""
    target, draft = PAIRS[request.param]
    engine = Engine.from_pretrained(target, dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)
    plain = {name: [o.token_ids for o in engine.generate(PROMPTS, s)] for name, s in SAMPLINGS.items()}
    return engine, draft, plain


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("way", WAYS)
def test_it_changes_no_token(pair, way, sampling):
    engine, draft, plain = pair
    config = SpeculationConfig(method="draft_model", model=draft, **WAYS[way])
    outputs = engine.generate(PROMPTS, SAMPLINGS[sampling], config)
    assert [output.token_ids for output in outputs] == plain[sampling]
    assert sum(output.statistics.accepted for output in outputs) > 0
    alone = engine.generate(PROMPTS[1], SAMPLINGS[sampling], config)[0]
    assert alone.token_ids == plain[sampling][1]
    engine.drafter_for(config).cache.pool.check_integrity([])


def test_auto_goes_through_text(pair):
    engine, draft, plain = pair
    config = SpeculationConfig(method="draft_model", model=draft)
    outputs = engine.generate(PROMPTS, SAMPLINGS["greedy"], config)
    assert [output.token_ids for output in outputs] == plain["greedy"]
    assert not engine.drafter_for(config).needs.samples


def test_letters_reach_further_through_text(pair):
    """A letter seldom is a token of the target, but words made of letters are."""
    engine, draft, _ = pair
    taus = {}
    for way in ("tokens", "strings"):
        before = (engine.statistics.committed, engine.statistics.rounds)
        engine.generate(PROMPTS, SAMPLINGS["greedy"], SpeculationConfig(method="draft_model", model=draft, **WAYS[way]))
        taus[way] = (engine.statistics.committed - before[0]) / (engine.statistics.rounds - before[1])
    assert taus["strings"] > taus["tokens"] > 1
