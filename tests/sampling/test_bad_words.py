"""Bad words as tokens, in every spelling a text may hold them."""

import pytest
from tokenizers_for_tests import byte_level, sentencepiece

from foredraft.core.errors import ConfigError
from foredraft.sampling.bad_words import encode_bad_words

both = pytest.mark.parametrize("tokenizer_of", [byte_level, sentencepiece])


def contains(tokens, sequence):
    return any(tokens[i : i + len(sequence)] == sequence for i in range(len(tokens)))


@both
@pytest.mark.parametrize("text", ["cat", "the cat sat", "a\ncat", "the cat"])
@pytest.mark.parametrize("word", ["cat", " cat"])
def test_a_bad_word_is_found_in_every_place(tokenizer_of, text, word):
    tokenizer = tokenizer_of()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    assert any(contains(tokens, sequence) for sequence in encode_bad_words([word], tokenizer))


@both
def test_sequences_spell_their_word(tokenizer_of):
    tokenizer = tokenizer_of()
    for sequence in encode_bad_words(["cat"], tokenizer):
        assert tokenizer.decode(sequence).strip() == "cat"


@both
def test_sequences_are_distinct_and_hold_no_special_token(tokenizer_of):
    tokenizer = tokenizer_of()
    sequences = encode_bad_words(["cat", "the hat", " cat"], tokenizer)
    assert len({tuple(sequence) for sequence in sequences}) == len(sequences)
    assert not {token for sequence in sequences for token in sequence} & set(tokenizer.all_special_ids)


def test_a_word_of_spaces_is_kept():
    tokenizer = byte_level()
    assert tokenizer.encode("  ", add_special_tokens=False) in encode_bad_words(["  "], tokenizer)


def test_no_words_give_no_sequences():
    assert encode_bad_words([], byte_level()) == []


class Deaf:
    def encode(self, text, add_special_tokens):
        return []


def test_a_word_without_tokens_is_refused():
    with pytest.raises(ConfigError, match="bad_words holds 'zzz'"):
        encode_bad_words(["zzz"], Deaf())
