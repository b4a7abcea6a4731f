"""EAGLE-3 (Li et al. 2503.01840): features of several layers fused, a chain unrolled in training as it is drafted."""

from dataclasses import dataclass

from foredraft.core.sampling_params import whole, within
from foredraft.core.speculation_config import one_of
from foredraft.heads.eagle import Eagle3Config, Eagle3Head
from foredraft.heads.shared import vocabulary_maps
from foredraft.training.batches import Batch
from foredraft.training.losses import LOSSES
from foredraft.training.methods.head_method import HeadMethod
from foredraft.training.methods.lesson import DraftVocabulary, lesson_of
from foredraft.training.methods.method import Setting, StepLosses, register
from foredraft.training.methods.sizes import (
    copy_last_norm,
    drafted_vocabulary,
    fused_boundaries,
    output_rows,
    sizes_like,
)
from foredraft.training.methods.unrolled import ChainLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle3Training:
    """How an EAGLE-3 head is made and trained. Raises `ConfigError` naming the value.

    Attributes:
        loss: Of a row: kl, reverse_kl, tv or ce.
        ttt_steps: Unrolls of the training-time test, which is the longest chain the head learns to draft.
        ttt_decay: Weight of an unroll's loss against the one before it.
        draft_vocabulary: Tokens the head can say: the ones written most in the training samples.
        intermediate_size: Width of the MLP; the target's when not given.
        layers: Decoder layers.
        feature_layers: Boundaries to fuse; 2, L // 2 and L - 3 when not given.
        output_init: What the output layer and the norm before it start as: target, the target's own, or random.
        fc_norm: Norm each captured state before they are fused (EAGLE-3.1).
        norm_output: Feed back the normed hidden state (EAGLE-3.1).
    """

    loss: str = "kl"
    ttt_steps: int = 5
    ttt_decay: float = 0.8
    draft_vocabulary: int = 8192
    intermediate_size: int | None = None
    layers: int = 1
    feature_layers: tuple[int, ...] | None = None
    output_init: str = "target"
    fc_norm: bool = False
    norm_output: bool = False

    def __post_init__(self) -> None:
        one_of("loss", self.loss, tuple(LOSSES))
        whole("ttt_steps", self.ttt_steps, 1, 16)
        within("ttt_decay", self.ttt_decay, 0, 1)
        whole("draft_vocabulary", self.draft_vocabulary, 1)
        whole("layers", self.layers, 1, 16)
        one_of("output_init", self.output_init, ("target", "random"))
        if self.intermediate_size is not None:
            whole("intermediate_size", self.intermediate_size, 1)


@register("eagle3", Eagle3Training)
class Eagle3Method(HeadMethod):
    """Trains an EAGLE-3 head."""

    name = kind = "eagle3"

    def __init__(self, options: Eagle3Training, setting: Setting):
        super().__init__(setting)
        self.vocabulary = drafted_vocabulary(setting, options.draft_vocabulary)
        self.module = new_head(options, setting, self.vocabulary)
        self.boundaries, self.draft_tokens = self.module.feature_layers, options.ttt_steps
        weights = tuple(options.ttt_decay**step for step in range(options.ttt_steps))
        self.chain = ChainLoss(LOSSES[options.loss], weights, measured=len(weights), recompute=setting.recompute)

    def loss(self, batch: Batch, step: int) -> StepLosses:
        lesson = lesson_of(batch, self.target.logits, self.vocabulary)
        return self.chain.over(self.module, batch.features, batch, lesson)


def new_head(options: Eagle3Training, setting: Setting, vocabulary: DraftVocabulary) -> Eagle3Head:
    """A head that starts from the target where it can. Randomness is torch's own."""
    target = setting.target
    config = Eagle3Config(
        sizes=sizes_like(target.config, intermediate_size=options.intermediate_size, own_rope=True),
        vocabulary=target.vocabulary.rows,
        draft_vocabulary=vocabulary.size,
        target_hidden_size=target.capability.hidden_size,
        feature_layers=fused_boundaries(
            options.feature_layers, target.capability.feature_layers, target.capability.layers
        ),
        layers=options.layers,
        fc_norm=options.fc_norm,
        norm_output=options.norm_output,
    )
    head = Eagle3Head(config, target.borrowed).to(target.device)
    if vocabulary.ids is not None:
        offsets, member = vocabulary_maps(vocabulary.ids.cpu(), config.vocabulary)
        head.d2t.copy_(offsets)
        head.t2d.copy_(member)
    if options.output_init == "target":
        head.lm_head.weight.data.copy_(output_rows(setting, vocabulary))
        copy_last_norm(target, head.norm)
    return head
