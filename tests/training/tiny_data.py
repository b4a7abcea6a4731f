"""A tiny target with a tokenizer and a chat template on disk, and texts in its tokens."""

import json
import random
from functools import cache
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from foredraft.training.samples import Sample

LAYERS, HIDDEN, CONTEXT = 3, 32, 96
BOS, END, USER, ASSISTANT, SYSTEM = "<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


VOCABULARY = 285  # of the tokenizer; the target has four rows of padding more


@cache
def chat_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer of every test that does not change it."""
    return new_tokenizer(TEMPLATE)


def new_tokenizer(template: str | None) -> PreTrainedTokenizerFast:
    """Byte-level BPE with marks for roles; in `TEMPLATE` turns end in an end token and a line feed."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    marks = [BOS, END, USER, ASSISTANT, SYSTEM]
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=marks, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["the cat and the hat sat on the mat; that is that, said the cat"] * 4, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=END)
    wrapped.chat_template = template
    assert len(wrapped) == VOCABULARY
    return wrapped


@torch.no_grad()
def save_target(folder: Path, **overrides) -> str:
    """A random Llama over the chat tokenizer, its logits spread far enough to choose between tokens."""
    tokenizer = chat_tokenizer()
    sizes = {
        "vocab_size": VOCABULARY + 4,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    module = LlamaForCausalLM(LlamaConfig(**(sizes | overrides)))
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.25 * noise if parameter.ndim > 1 else parameter + 0.1 * noise)
    module.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def random_samples(count: int, *, longest: int = 30, seed: int = 0) -> list[Sample]:
    """Samples of 4 to `longest` tokens, the second half of each written."""
    rng, samples = random.Random(seed), []
    for place in range(count):
        length = rng.randint(4, longest)
        tokens = [rng.randrange(5, VOCABULARY) for _ in range(length)]
        samples.append(Sample(tokens, [at >= length // 2 for at in range(length)], f"random:{place + 1}"))
    return samples


def write_lines(path: Path, *lines: dict | str) -> Path:
    """A file of these lines, JSON made of what is no string."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def chat(*turns: str) -> dict:
    """A conversation whose turns are the user's and the assistant's in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[place % 2], "content": turn} for place, turn in enumerate(turns)]}
