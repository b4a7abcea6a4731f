"""The shapes of the benchmark of the forward: Llamas with random weights, written as transformers reads them."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.model.int8_weights import GROUP
from foredraft.model.loading import find_path

BYTES = 2  # of a weight in bf16
INT8_BYTES = 1 + 4 / GROUP  # with its share of a scale
CONTEXT_LENGTH = 2048
SPREAD = 0.03  # of random weights: attention tells positions apart, and rounding does not grow out of hand
TOKENIZER_FILE, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
REFERENCE_FILE = "reference.json"
PROBE = 24  # tokens whose logits everybody is compared by


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """Sizes of a Llama.

    Attributes:
        hidden, layers, intermediate, vocabulary: Widths, and how many layers.
        heads, kv_heads, head_size: Of the attention.
        tied: Whether the embedding is the output layer as well.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    tied: bool
    head_size: int = 64

    @property
    def read_parameters(self) -> int:
        """Weights that a forward reads: all of them but an embedding that is not the output layer as well."""
        attention = 2 * self.hidden * self.head_size * (self.heads + self.kv_heads)
        layer = attention + 3 * self.hidden * self.intermediate + 2 * self.hidden
        return self.layers * layer + self.hidden + self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        return self.read_parameters + (0 if self.tied else self.vocabulary * self.hidden)

    def weight_bytes(self, each: float = BYTES) -> int:
        """Bytes of weights that a forward reads, `each` for one."""
        return round(self.read_parameters * each)

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values of one position."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_size,
            max_position_embeddings=CONTEXT_LENGTH,
            rms_norm_eps=1e-6,
            tie_word_embeddings=self.tied,
            initializer_range=SPREAD,
            bos_token_id=0,
            eos_token_id=4,
            pad_token_id=5,
        )


SHAPES = {
    "31m": Shape(hidden=512, layers=8, heads=8, kv_heads=4, intermediate=1408, vocabulary=8192, tied=True),
    "110m": Shape(hidden=768, layers=12, heads=12, kv_heads=4, intermediate=2048, vocabulary=32000, tied=True),
    "350m": Shape(hidden=1024, layers=24, heads=16, kv_heads=8, intermediate=2816, vocabulary=32000, tied=False),
}


def write_model(shape: Shape, seed: int, folder: Path) -> None:
    """Random weights in bf16, what they say in fp32, and a tokenizer, because peers want one."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(shape.config()).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:  # all ones would hide a norm in the wrong place
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / REFERENCE_FILE).write_text(json.dumps(reference(model.float(), shape, seed)))
    write_tokenizer(shape.vocabulary, folder)


def write_tokenizer(vocabulary: int, folder: Path) -> None:
    """The embedded model's, with further tokens that no text has: the engine writes no token it does not know."""
    source = Path(find_path("tiny"))
    tokenizer = json.loads((source / TOKENIZER_FILE).read_text(encoding="utf-8"))
    known = tokenizer["model"]["vocab"]
    known |= {f"<unused {token}>": token for token in range(max(known.values()) + 1, vocabulary)}
    (folder / TOKENIZER_FILE).write_text(json.dumps(tokenizer), encoding="utf-8")
    shutil.copy(source / TOKENIZER_CONFIG, folder / TOKENIZER_CONFIG)


@torch.inference_mode()
def reference(model: LlamaForCausalLM, shape: Shape, seed: int) -> dict[str, list]:
    """A few tokens and the logits behind the last of them."""
    tokens = random_tokens(shape, PROBE, seed)
    return {"tokens": tokens, "logits": model(torch.tensor([tokens])).logits[0, -1].tolist()}


def random_tokens(shape: Shape, count: int, seed: int) -> list[int]:
    random = Random(seed)
    return [random.randrange(shape.vocabulary) for _ in range(count)]
