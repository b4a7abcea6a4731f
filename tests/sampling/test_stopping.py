"""Where a text ends, and what of it is shown when."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers_for_tests import byte_level

from foredraft.core.errors import ConfigError
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.vocabulary import Vocabulary
from foredraft.sampling.detokenizer import Detokenizer
from foredraft.sampling.stopping import Stop, Stopper

EOS = 0
LETTERS = Vocabulary(rows=128, size=128, eos_token_ids=(EOS,))


class Letters:
    """A detokenizer whose token ids are ASCII codes."""

    def push(self, token):
        return chr(token) if token != EOS else ""

    def push_all(self, tokens: list[int]) -> str:
        return "".join(map(self.push, tokens))

    def flush(self):
        return ""


def stopper_of(**fields):
    return Stopper(SamplingParams(**fields), LETTERS, Letters())


def ids(text):
    return [EOS if letter == "$" else ord(letter) for letter in text]


def push(stopper, text):
    return stopper.push(ids(text))


def test_text_goes_on_until_something_ends_it():
    stopper = stopper_of()
    assert push(stopper, "abc") == Stop(3, None, "abc")
    assert push(stopper, "") == Stop(0, None, "")


def test_eos_ends_a_run_is_kept_and_has_no_text():
    assert push(stopper_of(), "ab$cd") == Stop(3, "stop", "ab")


def test_ignored_eos_does_not_end_the_text():
    assert push(stopper_of(ignore_eos=True), "ab$cd") == Stop(5, None, "abcd")


@pytest.mark.parametrize("ignore_eos", [False, True])
def test_stop_token_ids_end_the_text_and_are_not_shown(ignore_eos):
    stopper = stopper_of(stop_token_ids=(ord("x"),), ignore_eos=ignore_eos)
    assert push(stopper, "abxc") == Stop(3, "stop", "ab")


def test_the_length_limit_cuts_an_accepted_run():
    stopper = stopper_of(max_new_tokens=3)
    assert push(stopper, "ab") == Stop(2, None, "ab")
    assert push(stopper, "cde") == Stop(1, "length", "c")


def test_a_stop_at_the_limit_is_a_stop():
    assert push(stopper_of(max_new_tokens=2), "a$") == Stop(2, "stop", "a")
    assert push(stopper_of(max_new_tokens=2, stop=("b",)), "ab") == Stop(2, "stop", "a")


def test_a_stop_string_is_cut_with_its_last_token_kept():
    assert push(stopper_of(stop=("bc",)), "abcde") == Stop(3, "stop", "a")


def test_a_stop_string_across_pushes_is_held_back():
    stopper = stopper_of(stop=("end",))
    assert push(stopper, "the e") == Stop(5, None, "the ")
    assert push(stopper, "n") == Stop(1, None, "")
    assert push(stopper, "dx") == Stop(1, "stop", "")


def test_held_text_is_shown_once_it_is_harmless():
    stopper = stopper_of(stop=("end", "never"))
    assert push(stopper, "en") == Stop(2, None, "")
    assert push(stopper, "e") == Stop(1, None, "e")
    assert push(stopper, "w") == Stop(1, None, "new")


def test_held_text_is_shown_at_every_other_end():
    assert push(stopper_of(stop=("end",)), "the en$") == Stop(7, "stop", "the en")
    assert push(stopper_of(stop=("end",), max_new_tokens=6), "the end") == Stop(6, "length", "the en")


def test_the_stop_string_that_begins_first_wins():
    assert push(stopper_of(stop=("d", "bcd")), "abcd") == Stop(4, "stop", "a")


def test_neither_stop_tokens_nor_strings_count_before_the_minimum():
    stopper = stopper_of(min_new_tokens=4, stop=("b",), stop_token_ids=(ord("x"),))
    assert push(stopper, "abx$") == Stop(4, None, "abx")
    assert push(stopper, "cab") == Stop(3, "stop", "ca")
    stopper = stopper_of(min_new_tokens=2, stop_token_ids=(ord("x"),))
    assert push(stopper, "axx") == Stop(3, "stop", "ax")


def test_a_stop_string_that_does_not_count_is_not_held_back():
    assert push(stopper_of(min_new_tokens=2, stop=("b",)), "ab") == Stop(2, None, "ab")


def test_a_stop_string_of_the_first_tokens_is_not_found_later():
    # "ab" is held as a beginning of "abc" when the minimum is reached, with the whole of "b" inside.
    assert push(stopper_of(min_new_tokens=2, stop=("b", "abc")), "abd") == Stop(3, None, "abd")


def test_a_stop_string_may_begin_before_the_minimum():
    assert push(stopper_of(min_new_tokens=2, stop=("abc",)), "abc") == Stop(3, "stop", "")


def test_engines_without_a_tokenizer_stop_on_tokens_and_length_only():
    assert Stopper(SamplingParams(), LETTERS, None).push(ids("ab$c")) == Stop(3, "stop", "")
    assert Stopper(SamplingParams(max_new_tokens=1), LETTERS, None).push(ids("ab")) == Stop(1, "length", "")
    with pytest.raises(ConfigError, match="stop is .*needs a tokenizer"):
        Stopper(SamplingParams(stop=("x",)), LETTERS, None)


@settings(max_examples=200, deadline=None)
@given(
    st.text("ab$", max_size=14),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(1, 4), min_size=14, max_size=14),
    st.integers(1, 14),
)
def test_runs_of_any_size_end_alike_and_show_the_same_text(text, stops, sizes, maximum):
    tokens = ids(text)
    kept, reason, shown = run(stopper_of(stop=tuple(stops), max_new_tokens=maximum), tokens, sizes)
    assert (kept, reason, shown) == expected_end(text, stops, maximum)


def run(stopper, tokens, sizes):
    kept, shown = 0, ""
    for size in sizes:
        stop = stopper.push(tokens[kept : kept + size])
        kept += stop.kept
        shown += stop.text
        if stop.finish_reason:
            return kept, stop.finish_reason, shown
    return kept, None, shown + stopper.held


def expected_end(text, stops, maximum):
    """The end found the slow way, by looking at every beginning of the text."""
    for size in range(1, len(text) + 1):
        begun = text[:size]
        found = [begun.index(stop) for stop in stops if stop in begun]
        if begun.endswith("$"):
            return size, "stop", begun[:-1]
        if found:
            return size, "stop", begun[: min(found)]
        if size == maximum:
            return size, "length", begun
    return len(text), None, text


def test_stop_strings_are_found_across_the_borders_of_real_tokens():
    tokenizer = byte_level()
    tokens = tokenizer.encode("the cat 🦊 sat. the hat", add_special_tokens=False)
    vocabulary = Vocabulary(rows=len(tokenizer), size=len(tokenizer), eos_token_ids=(tokenizer.eos_token_id,))
    stopper = Stopper(SamplingParams(stop=("🦊 s",)), vocabulary, Detokenizer(tokenizer))
    shown = ""
    for count in range(1, len(tokens) + 1):
        stop = stopper.push(tokens[count - 1 : count])
        shown += stop.text
        if stop.finish_reason:
            break
    assert (stop.kept, stop.finish_reason, shown) == (1, "stop", "the cat ")
    assert tokenizer.decode(tokens[:count]).startswith("the cat 🦊 s")
    assert "🦊 s" not in tokenizer.decode(tokens[: count - 1])


def test_an_unfinished_character_is_shown_at_the_end():
    tokenizer = byte_level()
    tokens = tokenizer.encode("a🦊", add_special_tokens=False)[:-1]
    vocabulary = Vocabulary(rows=len(tokenizer), size=len(tokenizer))
    stopper = Stopper(SamplingParams(max_new_tokens=len(tokens)), vocabulary, Detokenizer(tokenizer))
    assert stopper.push(tokens) == Stop(len(tokens), "length", "a\ufffd")
