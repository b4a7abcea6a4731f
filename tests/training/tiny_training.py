"""A target small enough to train drafters for in a test, texts for it, and batches of both."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from foredraft.core.vocabulary import Vocabulary
from foredraft.model.capability import capability_of
from foredraft.model.loading import Checkpoint
from foredraft.training.batches import Batch, BatchPlan, BatchSource, make_batch
from foredraft.training.methods.method import Method, Setting, find_method, make_method
from foredraft.training.samples import Sample
from foredraft.training.target_network import TargetNetwork

VOCABULARY, HIDDEN, LAYERS, EOS = 40, 32, 6, 2


def tiny_target(padding: int = 0) -> TargetNetwork:
    """A random Llama whose likeliest tokens vary; `padding` rows of logits stand for no token."""
    config = LlamaConfig(
        vocab_size=VOCABULARY + padding,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=EOS,
    )
    torch.manual_seed(7)
    module = LlamaForCausalLM(config).eval().requires_grad_(False)
    checkpoint = Checkpoint(
        name="tiny test target",
        path="",
        config=config,
        model_class=LlamaForCausalLM,
        capability=capability_of(LlamaForCausalLM, config),
    )
    vocabulary = Vocabulary(rows=VOCABULARY + padding, size=VOCABULARY, eos_token_ids=(EOS,))
    return TargetNetwork(checkpoint, module, tokenizer(), vocabulary)


def tokenizer() -> PreTrainedTokenizerFast:
    words = {f"w{index}": index for index in range(VOCABULARY)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, "w0")), eos_token=f"w{EOS}")


def random_samples(count: int, *, seed: int = 0, longest: int = 14) -> list[Sample]:
    """Random texts whose first tokens are a prompt; now and then a later stretch is nobody's either."""
    generator = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    samples = []
    for index in range(count):
        length, prompt = number(longest // 2, longest + 1), number(1, 4)
        tokens = torch.randint(VOCABULARY, (length,), generator=generator).tolist()
        written = [row >= prompt and row % 7 != 6 for row in range(length)]
        samples.append(Sample(tokens, written, f"test:{index}"))
    return samples


class Computed:
    """States straight from the target."""

    def __init__(self, target: TargetNetwork, boundaries: tuple[int, ...]):
        self.target, self.boundaries = target, boundaries

    def states(self, samples: Sequence[Sample]) -> list[tuple[Tensor, Tensor]]:
        found = [self.target.features(torch.tensor([sample.tokens]), self.boundaries) for sample in samples]
        return [(states.features[0], states.final[0]) for states in found]


def batch_of(method: Method, target: TargetNetwork, samples: list[Sample]) -> Batch:
    return make_batch(samples, Computed(target, method.boundaries).states(samples), dtype=torch.float32)


def method_for(
    name: str, target: TargetNetwork, samples: list[Sample], *, recompute: bool = False, **options
) -> Method:
    setting = Setting(target=target, samples=samples, seed=3, recompute=recompute)
    return make_method(name, find_method(name).options(**options), setting)


def source_of(
    method: Method, target: TargetNetwork, samples: list[Sample], held_out: list[Sample], *, steps: int, **plan
) -> BatchSource:
    lengths = [len(sample) for sample in samples]
    states = Computed(target, method.boundaries)
    return BatchSource(samples, held_out, BatchPlan(lengths=lengths, seed=5, **plan), states, steps=steps)
