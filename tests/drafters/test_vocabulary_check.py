import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from foredraft.core.errors import VocabularyError
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.vocabulary_check import require_same_vocabulary, require_same_vocabulary_size


def tokenizer(*words, added=()):
    made = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))
    made.add_tokens(list(added))
    return made


def test_same_vocabulary_is_accepted():
    require_same_vocabulary(tokenizer("a", "b", added=["c"]), tokenizer("a", "b", "c"), drafter="small")


def test_first_differing_token_is_named():
    with pytest.raises(VocabularyError) as caught:
        require_same_vocabulary(tokenizer("a", "b", "c", "d"), tokenizer("a", "x", "y"), drafter="small")
    message = str(caught.value)
    assert "drafter 'small' has 3 tokens and the target 4" in message
    assert "token 1 is 'x' for the drafter and 'b' for the target" in message
    assert "\n" not in message


def test_tokens_in_another_order_differ():
    with pytest.raises(VocabularyError, match="token 0 is 'b' for the drafter and 'a' for the target"):
        require_same_vocabulary(tokenizer("a", "b"), tokenizer("b", "a"), drafter="small")


@pytest.mark.parametrize(
    ("target", "drafting", "said"),
    [
        (("a", "b"), ("a",), "token 1 is missing for the drafter and 'b' for the target"),
        (("a",), ("a", "b"), "token 1 is 'b' for the drafter and missing for the target"),
    ],
)
def test_missing_token_is_named(target, drafting, said):
    with pytest.raises(VocabularyError, match=said):
        require_same_vocabulary(tokenizer(*target), tokenizer(*drafting), drafter="small")


def test_sizes_are_compared_without_padded_rows():
    require_same_vocabulary_size(Vocabulary(rows=128, size=100), Vocabulary(rows=104, size=100), drafter="small")
    with pytest.raises(VocabularyError, match="drafter 'small' has 99 tokens and the target 100"):
        require_same_vocabulary_size(Vocabulary(rows=128, size=100), Vocabulary(rows=128, size=99), drafter="small")
