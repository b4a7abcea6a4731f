"""Small tokenizers for tests of text."""

from functools import cache
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

EOS = "<|end|>"
SENTENCEPIECE = Path("/work/shared/models/stories260K")


@cache
def byte_level():
    """A trained byte-level BPE tokenizer of some 300 tokens; the space is part of the token after it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[EOS], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the cat and the hat sat on the mat; that is that, said the cat"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS)


@cache
def sentencepiece():
    """A Llama tokenizer: spaces are a mark before the word, unknown characters fall back to bytes."""
    if not SENTENCEPIECE.is_dir():
        pytest.skip(f"{SENTENCEPIECE} is not here; it holds the sentencepiece-style tokenizer")
    return AutoTokenizer.from_pretrained(SENTENCEPIECE)
