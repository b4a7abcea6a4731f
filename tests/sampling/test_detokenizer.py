"""Text piece by piece equals text at once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from tokenizers_for_tests import EOS, byte_level, sentencepiece
from transformers import PreTrainedTokenizerFast

from foredraft.sampling.detokenizer import Detokenizer

TEXTS = [
    "the cat sat on the mat",
    "  two spaces,  inside  and at the end  ",
    "naïve café — 日本語 and 🦊🦊!",
    "line\n\nbreaks\tand tabs\n",
    "",
]
both = pytest.mark.parametrize("tokenizer_of", [byte_level, sentencepiece])


def pieces_of(tokenizer, tokens):
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, tokens), detokenizer.flush()]


def runs_of(tokenizer, tokens, cuts):
    """As `pieces_of`, several tokens at once."""
    detokenizer, edges = Detokenizer(tokenizer), sorted({0, len(tokens), *(cut % (len(tokens) + 1) for cut in cuts)})
    runs = [tokens[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]
    return [*map(detokenizer.push_all, runs), detokenizer.flush()], runs


@both
@settings(max_examples=120, deadline=None)
@given(st.sampled_from(TEXTS), st.lists(st.integers(0, 40)), st.lists(st.sampled_from([0, 1, 2]), max_size=3))
def test_runs_of_tokens_give_the_text_that_one_after_the_other_does(tokenizer_of, text, cuts, special):
    tokenizer = tokenizer_of()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for place, token in enumerate(special):
        tokens.insert((7 * place) % (len(tokens) + 1), token)
    pieces, runs = runs_of(tokenizer, tokens, cuts)
    single = Detokenizer(tokenizer)
    assert pieces[:-1] == ["".join([single.push(token) for token in run]) for run in runs]
    assert pieces[-1] == single.flush()


@settings(max_examples=120, deadline=None)
@given(st.lists(st.integers(0, 299), max_size=20), st.lists(st.integers(0, 20)))
def test_runs_of_any_byte_level_tokens_join_to_the_decoded_text(tokens, cuts):
    tokenizer = byte_level()
    tokens = [token % len(tokenizer) for token in tokens]
    pieces, _ = runs_of(tokenizer, tokens, cuts)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True)


@both
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_the_decoded_text(tokenizer_of, text):
    tokenizer = tokenizer_of()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    pieces = pieces_of(tokenizer, tokens)
    assert "".join(pieces) == tokenizer.decode(tokens, skip_special_tokens=True)
    assert pieces[-1] == ""


@settings(max_examples=80, deadline=None)
@given(st.text(max_size=30))
def test_any_text_survives_byte_level_tokens(text):
    tokenizer = byte_level()
    assert "".join(pieces_of(tokenizer, tokenizer.encode(text, add_special_tokens=False))) == text


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 299), max_size=20))
def test_any_byte_level_tokens_join_to_the_decoded_text(tokens):
    tokenizer = byte_level()
    tokens = [token % len(tokenizer) for token in tokens]
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens, skip_special_tokens=True)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(259, 511) | st.sampled_from([0, 1, 2]), max_size=20))
def test_any_sentencepiece_tokens_but_bytes_join_to_the_decoded_text(tokens):
    # Raw bytes are left out: decoding turns a whole run of them into replacements when the last one is bad.
    tokenizer = sentencepiece()
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens, skip_special_tokens=True)


@both
def test_a_character_comes_whole_with_its_last_byte(tokenizer_of):
    tokenizer = tokenizer_of()
    tokens = tokenizer.encode("🦊", add_special_tokens=False)
    pieces = pieces_of(tokenizer, tokens)
    assert len(tokens) >= 4
    assert pieces[-3:] == ["", "🦊", ""]
    assert not "".join(pieces[:-2]).strip()


def test_words_come_at_once_with_the_space_before_them():
    tokenizer = sentencepiece()
    tokens = tokenizer.encode("Once upon a time", add_special_tokens=False)
    pieces = pieces_of(tokenizer, tokens)
    assert "" not in pieces[: len(tokens)]
    assert pieces[0] == tokenizer.decode(tokens[:1])
    assert pieces[-2].strip() == tokenizer.decode(tokens[-1:])


@both
def test_special_tokens_have_no_text(tokenizer_of):
    tokenizer = tokenizer_of()
    tokens = tokenizer.encode("the cat", add_special_tokens=False)
    pieces = pieces_of(tokenizer, [tokenizer.eos_token_id, *tokens, tokenizer.eos_token_id])
    assert "".join(pieces) == "the cat"
    assert EOS not in pieces


def test_an_unfinished_character_is_flushed_as_its_replacement():
    tokenizer = byte_level()
    tokens = tokenizer.encode("a🦊", add_special_tokens=False)[:-1]
    pieces = pieces_of(tokenizer, tokens)
    assert pieces == ["a", "", "", "", "\ufffd"]


def test_cleaned_up_spaces_are_cleaned_here_too():
    words = {"the": 0, "cat": 1, ",": 2, "hat": 3, ".": 4}
    backend = Tokenizer(models.WordLevel(words, unk_token="."))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=True)
    tokens = [0, 1, 2, 0, 3, 4]
    assert "".join(pieces_of(tokenizer, tokens)) == tokenizer.decode(tokens) == "the cat, the hat."
