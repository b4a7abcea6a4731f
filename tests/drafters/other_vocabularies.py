"""Small tokenizers that differ, and the bridge between them."""

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.token_text import TokenText
from foredraft.drafters.vocabulary_bridge import VocabularyBridge

TEXT = "the king had three sons and the youngest of them was kind to the birds in the garden\n" * 4


def byte_level(size: int, *, special: dict[str, str] | None = None, every_byte: bool = True) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of `size` tokens, trained on a few words, special tokens by role first.

    Without `every_byte` it knows the letters of these words only, so that all of its texts are texts.
    """
    special = special or {}
    made = Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if every_byte else []
    trainer = BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=list(special.values()))
    made.train_from_iterator([TEXT], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def like_sentencepiece(*, byte_fallback: bool, opens: bool = False) -> PreTrainedTokenizerFast:
    """Characters and a few merges, spaces as markers, a space before every text; `opens` adds the first token too."""
    names = ["<unk>", "<s>", "</s>"]
    names += [f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else []
    names += ["\u2581", *"abcdefghijklmnopqrstuvwxyz.,", "th", "the", "\u2581the", "an", "\u2581an"]
    merges = [("t", "h"), ("th", "e"), ("\u2581", "the"), ("a", "n"), ("\u2581", "an")]
    vocabulary = {name: i for i, name in enumerate(names)}
    made = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=byte_fallback))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(steps)
    if opens:
        made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def letters(names: list[str]) -> PreTrainedTokenizerFast:
    """One token for each of some letters."""
    made = Tokenizer(BPE({name: i for i, name in enumerate(names)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


def text_of(tokenizer: PreTrainedTokenizerFast) -> TokenText:
    ends = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    size = len(tokenizer)
    return TokenText(tokenizer, Vocabulary(rows=size, size=size, eos_token_ids=ends), owner="a test")


def bridge_of(target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast) -> VocabularyBridge:
    return VocabularyBridge(text_of(target), text_of(draft))
