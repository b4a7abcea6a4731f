"""A guided output follows its grammar, whatever was drafted, and ends where the grammar does."""

import json
import random
import re
from math import inf

import pytest
import torch
from llguidance import LLMatcher, LLParserLimits
from tokenizers_for_tests import byte_level

from foredraft.core.errors import ConfigError
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.grammar import COMPILED, Grammars, grammar_for
from foredraft.sampling.grammar_state import GrammarState
from foredraft.sampling.request_sampler import RequestSampler

TOKENIZER = byte_level()
[EOS] = TOKENIZER.encode("<|end|>")
V = len(TOKENIZER) + 3  # padded rows as well
VOCABULARY = Vocabulary(rows=V, size=len(TOKENIZER), eos_token_ids=(EOS,))
SCHEMA = {
    "type": "object",
    "properties": {"cat": {"enum": ["on", "off"]}, "mats": {"type": "array", "items": {"type": "boolean"}}},
    "required": ["cat", "mats"],
    "additionalProperties": False,
}
NUMBER = r"the cat( and the hat){1,3}, [0-9]+\.[0-9]{2}!?"
GUIDED = {
    "regex": {"guided_regex": NUMBER},
    "schema": {"guided_json": '{"type": "array", "items": {"enum": [true, "on", "off"]}, "maxItems": 2}'},
    "lark": {"guided_grammar": 'start: "(" start ")" | "cat"'},
}


def state_for(**guided) -> GrammarState:
    return grammar_for(SamplingParams(**guided), TOKENIZER, VOCABULARY)


def sampler_for(prompt=(5, 6), bad_words=(), **fields) -> RequestSampler:
    params = SamplingParams(**fields)
    grammar = grammar_for(params, TOKENIZER, VOCABULARY)
    words = [TOKENIZER.encode(word) for word in bad_words]
    return RequestSampler(params, seed=1, prompt=list(prompt), vocabulary=VOCABULARY, bad_words=words, grammar=grammar)


def allowed(state: GrammarState, path=()) -> list[int]:
    return (~state.forbidden(path)).nonzero()[:, 0].tolist()


def written(sampler: RequestSampler, seed: int, limit: int = 120) -> list[int]:
    """A text drawn from random logits, up to its end-of-text token."""
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = []
    while len(tokens) < limit and EOS not in tokens:
        logits = torch.randn(1, V, generator=generator)
        tokens += sampler.draw(sampler.scores(logits, [[]]), [0])
        sampler.commit(tokens[-1:])
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_whatever_the_logits_say_a_text_follows_its_grammar(temperature):
    ends = 0
    for seed in range(12):
        regex = written(sampler_for(guided_regex=NUMBER, temperature=temperature), seed)
        schema = written(sampler_for(guided_json=json.dumps(SCHEMA), temperature=temperature), seed)
        if regex[-1] == EOS:
            assert re.fullmatch(NUMBER, TOKENIZER.decode(regex[:-1]))
        if schema[-1] == EOS:
            value = json.loads(TOKENIZER.decode(schema[:-1]))
            assert set(value) == {"cat", "mats"} and value["cat"] in ("on", "off")
        ends += (regex[-1] == EOS) + (schema[-1] == EOS)
    assert ends > 12


def walk(state: GrammarState, draw: random.Random, length: int) -> list[int]:
    """A path the grammar allows, now and then past its end, at times with a token it forbids."""
    path: list[int] = []
    while len(path) < length:
        mask = state.forbidden(path)
        path.append(draw.randrange(V) if mask is None or draw.random() < 0.1 else draw.choice(allowed(state, path)))
    return path


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    return one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("guided", GUIDED.values(), ids=GUIDED)
def test_a_drafted_path_counts_as_the_same_tokens_written(guided):
    """Asked in any order, of any path, before and after commits."""
    draw = random.Random(3)
    kinds = set()
    for _ in range(12):
        state, output = state_for(**guided), []
        for _ in range(3):
            paths = [walk(state, draw, draw.randrange(7)) for _ in range(4)]
            paths += [path[: draw.randrange(len(path) + 1)] for path in paths]
            for path in draw.sample(paths, len(paths)):
                fresh = state_for(**guided)
                forbidden = state.forbidden(path)
                for token in output + path if forbidden is not None else output:
                    fresh.commit([token])
                assert same(forbidden, fresh.forbidden([] if forbidden is not None else path))
                kinds.add("forbidden path" if forbidden is None else "ended" if EOS in path else "open")
            step = next((path for path in paths if path and state.forbidden(path) is not None), [])
            state.commit(step)
            output += step
    assert kinds == {"forbidden path", "ended", "open"}


@pytest.mark.parametrize("left", ['{ "a"\n', '{ "a" '])
def test_a_path_that_is_left_leaves_nothing_behind(left):
    """The two are equally long, and space may follow both."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    asked, fresh = (state_for(guided_json=json.dumps(schema)) for _ in range(2))
    taken = TOKENIZER.encode('{"a": ')
    assert asked.forbidden(TOKENIZER.encode(left)) is not None
    assert allowed(asked, taken) == allowed(fresh, taken)
    for state in (asked, fresh):
        state.commit(taken)
    assert allowed(asked) == allowed(fresh)


def test_a_complete_text_goes_on_with_endings_alone():
    state = state_for(guided_regex="cat")
    path = TOKENIZER.encode("cat")
    assert allowed(state, path) == [EOS]
    assert allowed(state, [*path, EOS]) == allowed(state, [*path, EOS, EOS]) == [EOS]
    assert state.forbidden([*path, EOS, *path]) is None and state.forbidden([EOS]) is None
    state.commit([*path, EOS])
    assert state.ended and allowed(state) == [EOS] and not state.forced(4)


def test_a_text_may_end_or_go_on_where_the_grammar_says_so():
    state = state_for(guided_regex="(cat)*")
    assert EOS in allowed(state) and len(allowed(state)) > 1
    assert allowed(state, [EOS]) == [EOS]


def test_rows_behind_a_forbidden_token_are_left_as_they_are():
    sampler = sampler_for(guided_regex="cat")
    logits = torch.randn(2, V)
    [cat] = TOKENIZER.encode(" cat")
    scores = sampler.scores(logits, [[], [cat]])
    assert scores[0].isinf().sum() > V - 4
    assert torch.equal(scores[1, : VOCABULARY.size], logits[1, : VOCABULARY.size])  # but for padding


def test_padding_is_never_allowed():
    state = state_for(guided_regex=r"[\s\S]*")
    assert max(allowed(state)) < VOCABULARY.size


@pytest.mark.parametrize("fields", [{"min_new_tokens": 9}, {"bad_words": ["the", " cat"]}, {"ignore_eos": True}])
def test_the_grammar_has_the_last_word(fields):
    """Where other bans forbid all that it allows; `ignore_eos` writes endings to the length asked for."""
    sampler = sampler_for(guided_regex="the cat", **fields)
    tokens = written(sampler, seed=0)
    assert TOKENIZER.decode(tokens[:-1]) == "the cat" and tokens[-1] == EOS
    scores = sampler.scores(torch.randn(1, V), [[]])
    assert (scores[0] > -inf).nonzero()[:, 0].tolist() == [EOS]


def test_other_bans_hold_where_the_grammar_leaves_a_choice():
    letters = set(TOKENIZER.encode("acht"))
    for seed in range(5):
        banned = sampler_for(guided_regex="[a-z]{4}", bad_words=["a", "c", "h", "t"])
        tokens = written(banned, seed)
        assert re.fullmatch("[a-z]{4}", TOKENIZER.decode(tokens[:-1])) and not letters & set(tokens)


def test_forced_tokens_are_what_alone_is_allowed():
    sampler = sampler_for(guided_regex="the cat and the hat, [0-9]")
    forced = sampler.forced(64)
    assert len(forced) > 3 and "the cat and the hat, ".startswith(TOKENIZER.decode(forced))
    for length, token in enumerate(forced):
        assert allowed(sampler.grammar, forced[:length]) == [token]
    assert sampler.forced(2) == forced[:2]
    sampler.commit(forced[:2])
    assert sampler.forced(64) == forced[2:]
    assert sampler_for().forced(64) == []


def test_a_guided_request_is_never_plainly_greedy():
    free = Vocabulary(rows=len(TOKENIZER), size=len(TOKENIZER), eos_token_ids=(EOS,))
    params = SamplingParams(guided_regex="a*")
    grammar = grammar_for(params, TOKENIZER, free)
    assert not RequestSampler(params, seed=0, prompt=[5], vocabulary=free, grammar=grammar).plain_greedy
    assert RequestSampler(SamplingParams(), seed=0, prompt=[5], vocabulary=free).plain_greedy


def test_a_grammar_past_the_matchers_limits_ends_the_text():
    state, path = limited_state(items=8), TOKENIZER.encode('{"a":')
    assert allowed(state, path) == allowed(state, [*path, EOS]) == [EOS]
    assert len(allowed(state, path[:-1])) > 1  # a draft that went too far costs the text nothing
    state.commit(path)
    assert allowed(state) == [EOS] and state.forced(4) == []
    state.commit([EOS])
    assert allowed(state) == [EOS]


@pytest.mark.parametrize("items", [4, 8, 20])
def test_limits_are_met_by_drafted_and_written_tokens_alike(items):
    tokens = TOKENIZER.encode('{ "a": 1, "cat": [[')
    for length in range(len(tokens)):
        drafted, stepwise = limited_state(items), limited_state(items)
        for token in tokens[:length]:
            stepwise.commit([token])
        if not stepwise.ended:
            assert same(drafted.forbidden(tokens[:length]), stepwise.forbidden([]))


def limited_state(items: int) -> GrammarState:
    """Any JSON object, by a matcher that gives up where a step looks at more than so many Earley items."""
    tokens = Grammars(TOKENIZER, VOCABULARY).tokens
    grammar = LLMatcher.grammar_from_json_schema({"type": "object"})
    matcher = LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(step_max_items=items))
    assert not matcher.is_error()
    return GrammarState(matcher, VOCABULARY)


def test_compiled_grammars_are_kept_and_the_oldest_leave():
    grammars = Grammars(TOKENIZER, VOCABULARY)
    for length in range(1, COMPILED + 5):
        grammars.matcher("guided_regex", f"a{{{length}}}")
    assert len(grammars.compiled) == COMPILED
    first = GrammarState(grammars.matcher("guided_regex", "cat"), VOCABULARY)
    first.commit(TOKENIZER.encode("cat"))
    assert not first.ended and GrammarState(grammars.matcher("guided_regex", "cat"), VOCABULARY).forced(9)


WRONG = {
    "guided_regex": ["[0-9", "(?=a)b"],
    "guided_grammar": ["start: foo", "start", 'begin: "x"'],
    "guided_json": ["{bad", "[]", "3", '{"type": "objct"}', '{"type": "integer", "minimum": 5, "maximum": 3}'],
}


@pytest.mark.parametrize("key, text", [(key, text) for key, texts in WRONG.items() for text in texts])
def test_what_is_no_grammar_gives_one_line(key, text):
    with pytest.raises(ConfigError) as error:
        state_for(**{key: text})
    message = str(error.value)
    assert key in message and "\n" not in message and message[-1] not in " :"


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_regex": ""},
        {"guided_json": {"type": "object"}},
        {"guided_json": "object", "guided_regex": "a"},
        {"guided_grammar": 'start: "a"', "guided_regex": "a"},
    ],
)
def test_sampling_params_refuse(fields):
    with pytest.raises(ConfigError, match="guided_") as error:
        SamplingParams(**fields)
    assert "\n" not in str(error.value)


def test_a_target_must_have_a_tokenizer_and_an_ending():
    params = SamplingParams(guided_regex="a")
    with pytest.raises(ConfigError, match="guided_regex needs a target with a tokenizer"):
        grammar_for(params, None, VOCABULARY)
    with pytest.raises(ConfigError, match="guided_regex needs a target with an end-of-text token"):
        grammar_for(params, TOKENIZER, Vocabulary(rows=V, size=V))
    assert grammar_for(SamplingParams(), None, VOCABULARY) is None
