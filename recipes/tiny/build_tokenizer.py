"""Train the 8,192-token byte-level tokenizer of the tiny family and cut the corpus into token streams.

python recipes/tiny/build_tokenizer.py --data ../shared/data/train --output .work/tiny
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
from corpus import CHAT_TEMPLATE, SPECIAL_TOKENS, derived_documents, documents, write_streams
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

VOCABULARY = 8192
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|endoftext|>",
        eos_token="<|end|>",
        pad_token="<|pad|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def training_texts(source: Path, seed: int) -> list[str]:
    """A sample that weighs domains evenly enough for an 8k vocabulary: at most 3 MB of each."""
    rng, texts = random.Random(seed), []
    pools = {p.stem: list(documents(p)) for p in sorted(source.glob("*.jsonl"))} | derived_documents(source, rng)
    for pool in pools.values():
        rng.shuffle(pool)
        size = 0
        for text in pool:
            texts.append(text)
            size += len(text)
            if size > 3_000_000:
                break
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    wrapped = wrap(train_tokenizer(training_texts(args.data, args.seed)))
    wrapped.save_pretrained(args.output / "tokenizer")

    def encode(texts: list[str]) -> np.ndarray:
        bos = wrapped.bos_token_id
        rows = wrapped.backend_tokenizer.encode_batch(texts, add_special_tokens=False)
        return np.concatenate([np.array([bos, *row.ids], dtype=np.uint16) for row in rows])

    counts = write_streams(args.data, args.output / "streams", encode, args.seed)
    (args.output / "streams" / "counts.json").write_text(json.dumps(counts, indent=2))
    print(json.dumps(counts, indent=2))


if __name__ == "__main__":
    main()
