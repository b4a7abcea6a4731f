"""Text between two vocabularies: byte for byte, across characters and words that several tokens share."""

import random

import pytest
from other_vocabularies import bridge_of, byte_level, letters, like_sentencepiece, text_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from foredraft.core.errors import ConfigError, VocabularyError
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.string_alignment import aligned
from foredraft.drafters.token_text import TokenText
from foredraft.drafters.translated_context import TranslatedContext

CHAT = {"bos_token": "<|text|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
BYTES = byte_level(290, special=CHAT)
FEWER = byte_level(264)
PIECES = like_sentencepiece(byte_fallback=True)
PLAIN = like_sentencepiece(byte_fallback=False)
TEXTS = [
    "the king and the birds",
    "two  spaces\n\nand lines \n",
    "caf\u00e9 \u4f60\u597d \U0001f600\U0001f468\u200d\U0001f469 end",
    "thethe an anthe",
]


@pytest.mark.parametrize("tokenizer", [BYTES, FEWER, PIECES], ids=["bytes", "fewer", "pieces"])
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_bytes_of_a_text(tokenizer, text):
    tokens = tokenizer.encode(text, add_special_tokens=False)
    own = text_of(tokenizer)
    assert own.text_bytes(tokens).removeprefix(b" " if own.adds_space else b"").decode() == text
    bare = [token for token, _, _ in own.encode(text)]
    assert own.text_bytes(bare).decode() == text


def test_a_tokenizers_habits_are_known():
    assert (text_of(PIECES).adds_space, text_of(PIECES).opening) == (True, "")
    assert (text_of(BYTES).adds_space, text_of(BYTES).opening) == (False, "")
    assert text_of(like_sentencepiece(byte_fallback=True, opens=True)).opening == "<s>"


def test_tokens_that_are_not_told_as_bytes_are_refused():
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")))
    with pytest.raises(VocabularyError, match="the tokenizer of target 'x' is neither byte-level"):
        TokenText(words, Vocabulary(rows=2, size=2), owner="target 'x'")
    with pytest.raises(VocabularyError, match="target 'x' has no tokenizer"):
        TokenText(object(), Vocabulary(rows=2, size=2), owner="target 'x'")


@pytest.mark.parametrize(("target", "draft"), [(BYTES, PIECES), (PIECES, BYTES), (BYTES, FEWER)])
def test_shared_tokens_write_the_same(target, draft):
    bridge = bridge_of(target, draft)
    assert len(set(bridge.draft_ids.values())) == bridge.shared > 20
    for token, other in bridge.draft_ids.items():
        special = token in bridge.target.special
        assert special == (other in bridge.draft.special)
        assert special or bridge.target.pieces[token] == bridge.draft.pieces[other]


def test_equal_vocabularies_share_every_token():
    assert bridge_of(BYTES, BYTES).draft_ids == {token: token for token in range(len(BYTES))}


def test_special_tokens_match_by_role_only():
    bridge = bridge_of(BYTES, PIECES)
    ids = bridge.draft_ids
    assert ids[BYTES.bos_token_id] == PIECES.bos_token_id and ids[BYTES.eos_token_id] == PIECES.eos_token_id
    assert BYTES.pad_token_id not in ids and bridge.draft_pieces[BYTES.pad_token_id] == b""
    assert bridge.target_pieces[PIECES.eos_token_id] == b"<|end|>" and bridge.target_pieces[0] == b""


def test_too_few_shared_tokens_are_counted():
    with pytest.raises(ConfigError, match="draft model 'small' shares 1 of its 20 tokens with the target, 2 are"):
        bridge_of(letters(list("axyz")), letters(list("abcdefghijklmnopqrst"))).require_shared("small")
    with pytest.raises(ConfigError, match="shares 0 of its 2 tokens"):
        bridge_of(letters(list("xyz")), letters(list("ab"))).require_shared("small")


@pytest.mark.parametrize("draft", [FEWER, PIECES], ids=["bytes", "pieces"])
@pytest.mark.parametrize("target", [BYTES, PIECES], ids=["from bytes", "from pieces"])
@pytest.mark.parametrize("text", TEXTS)
def test_a_text_read_piece_by_piece_is_the_text_read_at_once(target, draft, text):
    text = text * 12
    bridge = bridge_of(target, draft)
    tokens, pieces = target.encode(text), random.Random(5)
    context, read = TranslatedContext(bridge), 0
    while read < len(tokens):
        read = min(read + pieces.randint(1, 4), len(tokens))
        context.read(tokens[:read])
        written = bridge.draft.text_bytes(context.view(0, 10**6))
        assert bridge.target.text_bytes(tokens[:read]).strip(b" ") == written.strip(b" ")
    assert [token for token, _, _ in context.spans] == draft.encode(text, add_special_tokens=False)


def test_what_cannot_be_written_is_left_out():
    bridge = bridge_of(BYTES, PLAIN)
    context = TranslatedContext(bridge)
    tokens = BYTES.encode("the \U0001f600 kin\u00e9g an " * 9)
    for end in range(1, len(tokens) + 1):
        context.read(tokens[:end])
        held = context.decoder.getstate()[0]
        assert (context.view(0, 10**6) == []) == bool(held)  # the draft model has no token for a lone byte
    assert PLAIN.decode(context.view(0, 10**6)) == "the  king an " * 9


def test_a_prompts_special_tokens_are_the_draft_models():
    draft = like_sentencepiece(byte_fallback=True, opens=True)
    words = BYTES.encode("the king", add_special_tokens=False)
    wanted = draft.encode("the king")
    for before in ([], [BYTES.bos_token_id], [BYTES.pad_token_id]):
        context = TranslatedContext(bridge_of(BYTES, draft))
        context.read(before + words)
        assert context.view(0, 100) == wanted
    context.read([BYTES.pad_token_id, *words, BYTES.eos_token_id])
    assert context.view(0, 100) == [*wanted, draft.eos_token_id]


def test_a_full_context_loses_its_older_half():
    context = TranslatedContext(bridge_of(BYTES, FEWER))
    tokens = BYTES.encode("the birds in the garden " * 10)
    context.read(tokens)
    everything = [token for token, _, _ in context.spans]
    assert context.view(5, 1000) == everything
    assert context.view(5, 40) == everything[-20:]
    context.read(tokens + BYTES.encode("and"))
    longer = context.view(5, 40)
    assert longer[:10] == everything[-20:-10] and len(longer) < 30
    assert context.view(60, 40) == []


def drafted(draft, words: str) -> list[int]:
    return [token for token, _, _ in text_of(draft).encode(words)]


def test_a_draft_follows_the_committed_tokens():
    bridge = bridge_of(BYTES, PIECES)
    committed, whole = BYTES.encode("the king had"), BYTES.encode("the king had three sons and")
    path = aligned(committed, drafted(PIECES, " three sons and"), False, bridge)
    assert committed + path == whole[:-1]  # "and" may go on
    ended = aligned(committed, drafted(PIECES, " three sons"), True, bridge)
    assert committed + ended == [*BYTES.encode("the king had three sons"), BYTES.eos_token_id]
    assert aligned(committed, [], True, bridge) == [BYTES.eos_token_id]


def test_a_draft_that_would_change_committed_tokens_is_given_up():
    bridge = bridge_of(BYTES, PIECES)
    committed, whole = BYTES.encode("and th"), BYTES.encode("and the")
    assert bridge.target.pieces[whole[-1]] == b" the" and committed[: len(whole)] != whole
    assert aligned(committed, drafted(PIECES, "e birds in"), False, bridge) == []
    assert aligned(whole, drafted(PIECES, " birds in"), False, bridge) == BYTES.encode(" birds in")[:-1] != []


def test_an_unfinished_character_is_not_drafted():
    bridge = bridge_of(BYTES, PIECES)
    smile = drafted(PIECES, "\U0001f600")
    assert len(smile) == 4
    path = aligned(BYTES.encode("the"), drafted(PIECES, " king had") + smile[:3], False, bridge)
    assert path == BYTES.encode(" king had")[:-1] != []
    begun = BYTES.encode("the \U0001f600")[:-2]
    path = aligned(begun, smile[2:] + drafted(PIECES, " the king"), False, bridge)
    assert begun + path == BYTES.encode("the \U0001f600 the king")[:-1]
