"""Medusa (Cai et al. 2401.10774): heads on the target's last hidden state, each guessing one token further ahead."""

from dataclasses import dataclass, replace

import torch
from torch import nn

from foredraft.core.sampling_params import whole, within
from foredraft.core.speculation_config import one_of
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.training.batches import Batch
from foredraft.training.losses import LOSSES
from foredraft.training.methods.head_method import HeadMethod
from foredraft.training.methods.lesson import DraftVocabulary, judge, lesson_of
from foredraft.training.methods.method import Findings, Setting, StepLosses, counts, register
from foredraft.training.methods.sizes import drafted_vocabulary, output_rows

RANKS = 10  # guesses of a head whose accuracy is measured


@dataclass(frozen=True, kw_only=True, slots=True)
class MedusaTraining:
    """How Medusa heads are made and trained. Raises `ConfigError` naming the value.

    Attributes:
        loss: Of a row: kl, reverse_kl, tv or ce.
        medusa_heads: How many; head i guesses the token i + 1 after the root.
        medusa_decay: Weight of a head's loss against the one before it.
        draft_vocabulary: Tokens a head can say: the ones written most in the training samples.
        layers: Residual blocks of a head.
    """

    loss: str = "kl"
    medusa_heads: int = 4
    medusa_decay: float = 0.8
    draft_vocabulary: int = 8192
    layers: int = 1

    def __post_init__(self) -> None:
        one_of("loss", self.loss, tuple(LOSSES))
        whole("medusa_heads", self.medusa_heads, 1, 16)
        within("medusa_decay", self.medusa_decay, 0, 1)
        whole("draft_vocabulary", self.draft_vocabulary, 1)
        whole("layers", self.layers, 1, 16)


@register("medusa", MedusaTraining)
class MedusaMethod(HeadMethod):
    """Trains all heads together; the target's states go through none of its layers again."""

    name = kind = "medusa"
    learning_rate = 1e-3
    boundaries: tuple[int, ...] = ()

    def __init__(self, options: MedusaTraining, setting: Setting):
        super().__init__(setting)
        self.options, self.draft_tokens = options, options.medusa_heads
        self.vocabulary = drafted_vocabulary(setting, options.draft_vocabulary)
        self.module = new_heads(options, setting, self.vocabulary)

    @property
    def format(self) -> str:
        """Medusa's own layout has no place for the ids of a reduced vocabulary."""
        return "medusa" if self.vocabulary.ids is None else "medusa-vllm"

    def loss(self, batch: Batch, step: int) -> StepLosses:
        """Head i at row r guesses token r + 2 + i, whose law is the target's at row r + 1 + i."""
        lesson = lesson_of(batch, self.target.logits, self.vocabulary)
        ranks = 0 if torch.is_grad_enabled() else RANKS
        total, judged, counted = torch.zeros((), device=batch.tokens.device), [], []
        for index, head in enumerate(self.heads()):
            taught = lesson.from_row(1 + index)
            rows = batch.final[taught.text, taught.row - 1 - index]
            rows = rows.to(self.module.lm_heads[index].weight.dtype)
            criterion = LOSSES[self.options.loss]
            judged.append(judge(head, rows, taught, criterion, recompute=self.recompute, ranks=ranks))
            counted.append((lesson.every[1] > index).sum())
            total = total + self.options.medusa_decay**index * judged[-1].loss
        return StepLosses(
            total=total,
            weight=counts(counted[:1])[0],
            correct=counts([one.correct for one in judged]),
            counted=counts(counted),
            ranks=counts([one.ranks for one in judged]) if ranks else None,
        )

    def heads(self) -> list[nn.Module]:
        pairs = zip(self.module.blocks, self.module.lm_heads, strict=True)
        return [nn.Sequential(block, output) for block, output in pairs]

    def measured(self, findings: Findings) -> None:
        """The accuracies a static tree is built from."""
        self.module.config = replace(self.module.config, accuracies=findings.rank_shares)


def new_heads(options: MedusaTraining, setting: Setting, vocabulary: DraftVocabulary) -> MedusaHeads:
    """Heads that say what the target's own output layer says: blocks that change nothing, its rows after them."""
    target = setting.target
    config = MedusaConfig(
        hidden_size=target.capability.hidden_size,
        vocabulary=target.vocabulary.rows,
        heads=options.medusa_heads,
        layers=options.layers,
        draft_vocabulary=vocabulary.size if vocabulary.ids is not None else target.vocabulary.rows,
    )
    heads = MedusaHeads(config).to(target.device)
    if vocabulary.ids is not None:
        heads.target_ids.copy_(vocabulary.ids)
    for output in heads.lm_heads:
        output.weight.data.copy_(output_rows(setting, vocabulary))
    return heads
