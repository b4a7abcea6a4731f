"""DFlash (2602.06036): blocks of masks hung on random anchors of a text, all of them guessed at once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.core.speculation_config import one_of
from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.training.attends import BlockAttend
from foredraft.training.batches import Batch
from foredraft.training.losses import LOSSES
from foredraft.training.methods.head_method import HeadMethod
from foredraft.training.methods.lesson import Lesson, judge, lesson_of
from foredraft.training.methods.method import Setting, StepLosses, counts, register
from foredraft.training.methods.sizes import copy_last_norm, fused_boundaries, mask_token, sizes_like, whole_vocabulary
from foredraft.training.methods.text_draws import text_generators

FUSED = 5  # hidden states of the target, where it has as many layers


@dataclass(frozen=True, kw_only=True, slots=True)
class DFlashTraining:
    """How a block drafter is made and trained. Raises `ConfigError` naming the value.

    Attributes:
        loss: Of a row: kl, reverse_kl, tv or ce.
        block_size: Rows of a block, the root included; one token less is guessed.
        anchors: Random blocks of a text in a step.
        dflash_gamma: The k-th guess weighs exp(-(k - 1) / gamma).
        causal: Whether a row of a block sees only earlier rows of it (JetSpec).
        mask_token_id: The token that stands for a guess; a padding row of the target where it has one, else its mask,
            pad or end token.
        intermediate_size: Width of the MLP; the target's when not given.
        layers: Decoder layers.
        feature_layers: Boundaries to fuse; five spread over the target when not given.
    """

    loss: str = "kl"
    block_size: int = 8
    anchors: int = 64
    dflash_gamma: float = 4.0
    causal: bool = False
    mask_token_id: int | None = None
    intermediate_size: int | None = None
    layers: int = 3
    feature_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        one_of("loss", self.loss, tuple(LOSSES))
        whole("block_size", self.block_size, 2, 64)
        whole("anchors", self.anchors, 1)
        require(self.dflash_gamma > 0, f"dflash_gamma is {self.dflash_gamma}; it must be over 0")
        whole("layers", self.layers, 1, 16)
        if self.intermediate_size is not None:
            whole("intermediate_size", self.intermediate_size, 1)


@register("dflash", DFlashTraining)
class DFlashMethod(HeadMethod):
    """Trains a block drafter; embedding and output layer stay the target's."""

    name = kind = "dflash"
    learning_rate = 6e-4

    def __init__(self, options: DFlashTraining, setting: Setting):
        super().__init__(setting)
        self.options, self.draft_tokens = options, options.block_size - 1
        self.vocabulary = whole_vocabulary(setting)
        self.module = new_head(options, setting)
        self.boundaries = self.module.feature_layers

    def loss(self, batch: Batch, step: int) -> StepLosses:
        """Row k of a block at anchor p guesses token p + k, whose law is the target's at row p + k - 1."""
        lesson = lesson_of(batch, self.target.logits, self.vocabulary)
        places = places_of(lesson, batch.tokens)
        anchors = self.anchors(batch, places, step)
        out = self.blocks(batch, anchors)
        total, weight, judged, counted = torch.zeros((), device=out.device), 0.0, [], []
        for ahead in range(1, self.options.block_size):
            rows, place = taught_rows(places, anchors, ahead)
            taught, criterion = lesson.at(place), LOSSES[self.options.loss]
            judged.append(
                judge(self.module.logits, out[:, :, ahead][rows], taught, criterion, recompute=self.recompute)
            )
            counted.append(rows.sum())
            share = math.exp(-(ahead - 1) / self.options.dflash_gamma)
            total, weight = total + share * judged[-1].loss, weight + share * counted[-1].to(torch.float64)
        correct = counts([one.correct for one in judged])
        return StepLosses(total=total, weight=weight, correct=correct, counted=counts(counted))

    def anchors(self, batch: Batch, places: Tensor, step: int) -> Tensor:
        """Random rows whose next token teaches, [B, A], ascending; 0 fills texts with fewer and anchors nothing."""
        chosen = []
        for generator, teaches in zip(text_generators(self.seed, step, batch), (places >= 0).cpu(), strict=True):
            rows = teaches[1:].nonzero().flatten() + 1  # row 0 has no context
            order = torch.randperm(len(rows), generator=generator)[: self.options.anchors]
            chosen.append(rows[order].sort().values)
        padded = pad_sequence(chosen, batch_first=True)
        return (padded if padded.shape[1] else padded.new_zeros(len(chosen), 1)).to(places.device)

    def blocks(self, batch: Batch, anchors: Tensor) -> Tensor:
        """Hidden states of every block, [B, A, N, hidden]."""
        head, size = self.module, self.options.block_size
        rows = torch.arange(batch.tokens.shape[1], device=anchors.device)[None]
        context = head.context(head.fuse(batch.features.to(head.fc.weight.dtype)), rows)
        tokens = torch.full((*anchors.shape, size), head.config.mask_token_id, device=anchors.device)
        tokens[..., 0] = batch.tokens.gather(1, anchors)
        positions = anchors[..., None] + torch.arange(size, device=anchors.device)
        attend = BlockAttend(context, anchors, causal_block=self.options.causal)
        return head(tokens.flatten(1), positions.flatten(1), attend).unflatten(1, tokens.shape[1:])


def places_of(lesson: Lesson, tokens: Tensor) -> Tensor:
    """Where a row of a text stands in the lesson, -1 where it teaches nothing, [B, T]."""
    places = torch.full(tokens.shape, -1, device=tokens.device)
    places[lesson.text, lesson.row] = torch.arange(len(lesson.row), device=tokens.device)
    return places


def taught_rows(places: Tensor, anchors: Tensor, ahead: int) -> tuple[Tensor, Tensor]:
    """Blocks whose row `ahead` is taught, a mask [B, A], and the lesson's places of these."""
    rows = anchors + ahead - 1
    place = places.gather(1, rows.clamp(max=places.shape[1] - 1))
    taught = (anchors > 0) & (rows < places.shape[1]) & (place >= 0)
    return taught, place[taught]


def new_head(options: DFlashTraining, setting: Setting) -> DFlashHead:
    """A head whose last norm is the target's own. Randomness is torch's own."""
    target = setting.target
    layers = target.capability.layers
    spread = torch.linspace(2, layers - 2, FUSED).round().int().tolist()
    config = DFlashConfig(
        sizes=sizes_like(target.config, intermediate_size=options.intermediate_size, head_norms=True),
        vocabulary=target.vocabulary.rows,
        target_hidden_size=target.capability.hidden_size,
        feature_layers=fused_boundaries(options.feature_layers, tuple(spread), layers),
        layers=options.layers,
        block_size=options.block_size,
        mask_token_id=mask_token(target, options.mask_token_id),
        causal=options.causal,
    )
    head = DFlashHead(config, target.borrowed).to(target.device)
    copy_last_norm(target, head.norm)
    return head
