"""Distillation: a small causal language model learns its target's law (DistillSpec, 2310.08461)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.core.speculation_config import one_of
from foredraft.drafters.vocabulary_check import require_same_vocabulary
from foredraft.training.batches import Batch
from foredraft.training.losses import LOSSES
from foredraft.training.methods.lesson import judge, lesson_of
from foredraft.training.methods.method import Findings, Setting, StepLosses, counts, register
from foredraft.training.methods.sizes import whole_vocabulary
from foredraft.training.target_network import TargetNetwork

FRESH_WIDTH, FRESH_LAYERS, FRESH_HEADS = 192, 2, 4


@dataclass(frozen=True, kw_only=True, slots=True)
class DraftTraining:
    """Which small model is distilled, and how. Raises `ConfigError` naming the value.

    Attributes:
        loss: Of a row: kl, reverse_kl, tv or ce.
        init: Model to go on from: a folder, a hub id or an embedded name; a fresh Llama when not given.
        hidden_size: Of a fresh model; 192 when not given.
        layers: Decoder layers of a fresh model; 2 when not given.
        heads: Attention heads of a fresh model; 4 when not given.
        intermediate_size: Width of the MLP of a fresh model; 8/3 of its hidden size when not given.
        draft_tokens: Chain length that the expected tau is told for; agreement is the same at every position.
    """

    loss: str = "kl"
    init: str | None = None
    hidden_size: int | None = None
    layers: int | None = None
    heads: int | None = None
    intermediate_size: int | None = None
    draft_tokens: int = 5

    def __post_init__(self) -> None:
        one_of("loss", self.loss, tuple(LOSSES))
        whole("draft_tokens", self.draft_tokens, 1, 64)
        for name in ("hidden_size", "layers", "heads", "intermediate_size"):
            value = getattr(self, name)
            require(value is None or self.init is None, f"{name} is for a fresh model; {self.init!r} has its own")
            if value is not None:
                whole(name, value, 1)
        width, heads = self.fresh_sizes["hidden_size"], self.fresh_sizes["num_attention_heads"]
        even = width % (2 * heads) == 0
        require(even, f"hidden_size is {width}; it must be a multiple of {2 * heads}, twice the heads")

    @property
    def fresh_sizes(self) -> dict[str, int]:
        """Sizes of a fresh model, defaults resolved, by their names in a Llama config."""
        width, heads = self.hidden_size or FRESH_WIDTH, self.heads or FRESH_HEADS
        return {
            "hidden_size": width,
            "intermediate_size": self.intermediate_size or width * 8 // 3,
            "num_hidden_layers": self.layers or FRESH_LAYERS,
            "num_attention_heads": heads,
            "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        }


@register("draft", DraftTraining)
class DraftMethod:
    """Trains a draft model, kept as a transformers folder."""

    name, drafter = "draft", "draft_model"
    learning_rate = 5e-4
    boundaries: tuple[int, ...] = ()

    def __init__(self, options: DraftTraining, setting: Setting):
        self.target, self.recompute = setting.target, setting.recompute
        self.options, self.draft_tokens = options, options.draft_tokens
        self.vocabulary = whole_vocabulary(setting)
        start = loaded(options.init, setting) if options.init else None
        self.scaled = start.scaled if start else lambda logits: logits
        module = start.module if start else fresh(options, setting)
        self.module = module.to(setting.target.device).requires_grad_(True)

    def loss(self, batch: Batch, step: int) -> StepLosses:
        """Row r guesses token r + 1, whose law is the target's at row r."""
        lesson = lesson_of(batch, self.target.logits, self.vocabulary)
        states = self.module.get_decoder()(input_ids=batch.tokens, use_cache=False).last_hidden_state
        rows = states[lesson.text, lesson.row]
        judged = judge(self.logits, rows, lesson, LOSSES[self.options.loss], recompute=self.recompute)
        counted = counts([torch.tensor(len(lesson.row), device=rows.device)])
        alike = (self.draft_tokens,)  # a token further on is guessed by the same model from the same tokens
        correct = counts([judged.correct])
        return StepLosses(
            total=judged.loss, weight=counted[0], correct=correct.expand(alike), counted=counted.expand(alike)
        )

    def logits(self, rows: Tensor) -> Tensor:
        return self.scaled(self.module.get_output_embeddings()(rows))

    def measured(self, findings: Findings) -> None:
        """A language model stores no measurement."""

    def write(self, folder: Path, target_name: str) -> None:
        """Write model and tokenizer."""
        self.module.save_pretrained(folder)
        self.target.tokenizer.save_pretrained(folder)


def loaded(name: str, setting: Setting) -> TargetNetwork:
    """The model `name` in fp32. Raises `ModelError` or `VocabularyError`."""
    network = TargetNetwork.load(name, dtype="fp32", device=str(setting.target.device))
    require_same_vocabulary(setting.target.tokenizer, network.tokenizer, drafter=name)
    return network


def fresh(options: DraftTraining, setting: Setting) -> nn.Module:
    """A random Llama over the target's tokens. Randomness is torch's own."""
    target = setting.target
    config = LlamaConfig(
        **options.fresh_sizes,
        vocab_size=target.vocabulary.rows,
        max_position_embeddings=target.capability.context_length,
        bos_token_id=target.tokenizer.bos_token_id,
        eos_token_id=list(target.vocabulary.eos_token_ids) or None,
        tie_word_embeddings=True,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
