"""Streams in words and sentences: where chunks end, and that they join to the text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foredraft.serving.replies.chunker import Chunker

KINDS = ["token", "word", "sentence"]
TEXTS = st.text(st.sampled_from("ab DI.!?。！」\"')1\n…"), max_size=40)


def chunked(kind: str, *pieces: str) -> list[str]:
    chunker = Chunker(kind)
    chunks = [chunk for piece in pieces for chunk in chunker.push(piece)]
    rest = chunker.flush()
    return [*chunks, rest] if rest else chunks


@pytest.mark.parametrize("kind", KINDS)
@given(pieces=st.lists(TEXTS | st.text(max_size=5), max_size=8))
def test_chunks_join_to_the_text(kind, pieces):
    chunks = chunked(kind, *pieces)
    assert "".join(chunks) == "".join(pieces)
    assert all(chunks)


@pytest.mark.parametrize("kind", ["word", "sentence"])
@given(pieces=st.lists(TEXTS, max_size=8))
def test_chunks_do_not_depend_on_how_the_text_comes(kind, pieces):
    assert chunked(kind, *pieces) == chunked(kind, "".join(pieces))


def test_tokens_come_as_they_are():
    assert chunked("token", "a b. ", "", "c") == ["a b. ", "c"]


def test_words_end_behind_white_space():
    assert chunked("word", "Hel", "lo  wor", "ld,\nagain") == ["Hello ", " world,\n", "again"]


@pytest.mark.parametrize(
    "sentences",
    [
        ["It rains. ", "It pours! ", "Does it? ", "Yes."],
        ["Pi is 3.14 or so. ", "Version 2.0.1 is out.\n", "Done"],
        ["Dr. Smith met J. K. Rowling, e.g. in the U.S. of old. ", "So did I. ", "Then"],
        ['He said "Stop." ', "She did (at once!) ", "End"],
        ["今日は雨です。", "本当ですか？", "「はい。」", "そう"],
        ["Wait... ", "what?! ", "No"],
        ["A title\n\n", "Its text. ", "End"],
        ["1. First item. ", "2. Second item. ", "3. Third"],
        ["The year was 1999. ", "Then it was 2000. ", "Now"],
    ],
)
def test_sentences(sentences):
    assert chunked("sentence", "".join(sentences)) == sentences


def test_a_sentence_is_told_as_soon_as_it_is_whole():
    chunker = Chunker("sentence")
    assert chunker.push("It rains.") == []
    assert chunker.push(" And") == ["It rains. "]
    assert chunker.held == "And"
