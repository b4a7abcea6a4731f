import random

import pytest
from transformers import AutoTokenizer

from foredraft.cli.source_runs import SourceRuns
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.engine.output import TokenEvent
from foredraft.sampling.detokenizer import Detokenizer
from foredraft.sampling.stopping import Stopper


@pytest.fixture(scope="session")
def tokenizer(model):
    return AutoTokenizer.from_pretrained(model)


def runs_of(tokenizer, steps, **params) -> tuple[list[list], str]:
    """Runs of each event and the whole text, for steps of (token ids, sources) read by the engine's stopper."""
    vocabulary = Vocabulary(rows=len(tokenizer), size=len(tokenizer), eos_token_ids=(0,))
    stopper = Stopper(SamplingParams(**params), vocabulary, Detokenizer(tokenizer))
    splitter, found, text = SourceRuns(Detokenizer(tokenizer)), [], ""
    for tokens, sources in steps:
        stop = stopper.push(tokens)
        kept = slice(stop.kept)
        event = TokenEvent(
            index=0,
            sample=0,
            tokens=tokens[kept],
            sources=sources[kept],
            text=stop.text,
            finish_reason=stop.finish_reason,
        )
        found.append(splitter.split(event))
        text += stop.text
        if stop.finish_reason:
            break
    return found, text


def test_each_token_has_its_own_source(tokenizer):
    tokens = tokenizer("abcd")["input_ids"]
    found, _ = runs_of(tokenizer, [(tokens, ["ngram", "ngram", None, "suffix"])])
    assert found == [[("ab", "ngram"), ("c", None), ("d", "suffix")]]


def test_a_character_of_several_tokens_belongs_to_the_one_that_finishes_it(tokenizer):
    first, second = tokenizer("é")["input_ids"]
    found, _ = runs_of(tokenizer, [([first], ["ngram"]), ([second, *tokenizer("x")["input_ids"]], [None, "ngram"])])
    assert found == [[], [("é", None), ("x", "ngram")]]


def test_text_held_back_for_a_stop_string_keeps_its_source(tokenizer):
    tokens = tokenizer("aENx")["input_ids"]
    steps = [([token], [source]) for token, source in zip(tokens, ["one", "two", "two", None], strict=True)]
    found, _ = runs_of(tokenizer, steps, stop=("END",))
    assert found == [[("a", "one")], [], [], [("EN", "two"), ("x", None)]]


def test_a_stop_string_is_not_shown(tokenizer):
    found, text = runs_of(tokenizer, [(tokenizer("abEND")["input_ids"], ["ngram"] * 5)], stop=("END",))
    assert found == [[("ab", "ngram")]] and text == "ab"


@pytest.mark.parametrize("seed", range(20))
def test_runs_always_join_to_the_text(tokenizer, seed):
    rng = random.Random(seed)
    words = ["naïve ", "日本", "🙂", "END", "EN", " x", "é"]
    tokens = tokenizer("start " + "".join(rng.choices(words, k=20)))["input_ids"]
    steps = []
    while tokens:
        size = rng.randint(1, 5)
        steps.append((tokens[:size], [rng.choice([None, "a", "b"]) for _ in tokens[:size]]))
        tokens = tokens[size:]
    length = rng.randint(20, 60)  # may end inside a character
    found, text = runs_of(tokenizer, steps, stop=("ENDEND",), max_new_tokens=length)
    assert "".join(run for runs in found for run, _ in runs) == text != ""
