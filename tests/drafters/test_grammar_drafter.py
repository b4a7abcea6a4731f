"""Guided outputs follow their grammar and are plain decoding's own, whoever drafts."""

import json
import re

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF

TOKENS = 40
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
SENTENCE = r"The sum of the numbers is [0-9]{1,3}, as far as I know(, or more)?\."
LARK = 'start: "maybe" (" and " WORD){1,2} "."\nWORD: /[a-z]{3,6}/'
GUIDED = [{"guided_json": SCHEMA}, {"guided_regex": SENTENCE}, {"guided_grammar": LARK}, {}]
QUESTION = "Write this form as JSON.\n\nname: Ada Berg\nage: 30"
TREE = {"tree_size": 12, "num_speculative_tokens": 5}
CONFIGS = {
    "grammar": {"method": "grammar"},
    "ngram tree": {"method": "ngram", "prompt_lookup_min": 1, **TREE},
    "suffix chain": {"method": "suffix"},
    "draft tree": {"method": "draft_model", "model": "tiny-draft", **TREE},
    "medusa tree": {"method": "medusa", **TREE},
    "eagle3 tree": {"method": "eagle3", **TREE},
    "dflash chain": {"method": "dflash", "num_speculative_tokens": 7},
    "cascade": {"method": "cascade", "drafters": "grammar, suffix, dflash", "num_speculative_tokens": 7},
    "merged": {"method": "merged", "drafters": "grammar, draft_model:tiny-draft, suffix", **TREE},
}
SAMPLINGS = {"greedy": {"temperature": 0.0}, "seeded": {"temperature": 1.0, "seed": 5}}


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)


@pytest.fixture(scope="module")
def prompt(engine) -> list[int]:
    return engine.chat([{"role": "user", "content": QUESTION}])


def params(sampling: str) -> list[SamplingParams]:
    """One for each grammar, and one without."""
    return [SamplingParams(max_new_tokens=TOKENS, **SAMPLINGS[sampling], **guided) for guided in GUIDED]


@pytest.fixture(scope="module")
def plain(engine, prompt) -> dict[str, list[list[int]]]:
    """Each request alone, nothing drafted."""
    return {name: [engine.generate([prompt], alone)[0].token_ids for alone in params(name)] for name in SAMPLINGS}


def check(outputs) -> None:
    """Every guided output is complete and as its grammar says."""
    form, sentence, lark, _ = outputs
    assert [output.finish_reason for output in outputs[:3]] == ["stop"] * 3
    assert list(json.loads(form.text)) == ["name", "age"] and json.loads(form.text)["age"] <= 120
    assert re.fullmatch(SENTENCE, sentence.text)
    assert re.fullmatch(r"maybe( and [a-z]{3,6}){1,2}\.", lark.text)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", CONFIGS)
def test_a_drafter_changes_no_guided_token(engine, prompt, plain, name, sampling):
    config = SpeculationConfig.from_dict(CONFIGS[name])
    outputs = engine.generate([prompt] * 4, params(sampling), config)
    assert [output.token_ids for output in outputs] == plain[sampling]
    assert sum(output.statistics.accepted for output in outputs[:3]) > 0
    check(outputs)
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_forced_token_is_accepted(engine, prompt, sampling):
    config = SpeculationConfig(method="grammar", num_speculative_tokens=16)
    outputs = engine.generate([prompt] * 4, params(sampling), config)
    assert all(output.statistics.acceptance_rate == 1 for output in outputs[:3])
    assert outputs[1].statistics.accepted > 10  # most of the sentence
    assert outputs[3].statistics.drafted == 0


@pytest.mark.parametrize("rule", ["standard", "traversal", "lossy-typical"])
def test_other_rules_keep_to_the_grammar(engine, prompt, rule):
    shape = {} if rule == "standard" else TREE
    config = SpeculationConfig(method="medusa", rejection_sample_method=rule, **shape)
    check(engine.generate([prompt] * 4, params("seeded"), config))
    config = SpeculationConfig(method="cascade", drafters="grammar, medusa", rejection_sample_method=rule, **shape)
    outputs = engine.generate([prompt] * 4, params("seeded"), config)
    check(outputs)
    assert outputs[1].statistics.accepted_by["grammar"] > 0


def test_forced_tokens_come_first_in_a_cascade(engine, prompt):
    config = SpeculationConfig(method="cascade", drafters="grammar, suffix", num_speculative_tokens=16)
    alone = SpeculationConfig(method="grammar", num_speculative_tokens=16)
    [both] = engine.generate([prompt], params("greedy")[1], config)
    [forced] = engine.generate([prompt], params("greedy")[1], alone)
    assert both.statistics.accepted_by["grammar"] > 10 and both.statistics.rounds <= forced.statistics.rounds


def test_continuations_of_one_prompt_have_a_grammar_each(engine, prompt):
    sampling = SamplingParams(max_new_tokens=TOKENS, temperature=1.0, seed=2, n=3, guided_grammar=LARK)
    outputs = engine.generate([prompt], sampling, SpeculationConfig(method="suffix"))
    assert len({output.text for output in outputs}) > 1
    assert all(re.fullmatch(r"maybe( and [a-z]{3,6}){1,2}\.", output.text) for output in outputs)
