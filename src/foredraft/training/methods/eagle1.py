"""EAGLE-1 (Li et al. 2401.15077): predict the target's next last hidden state, and through it the next token."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from foredraft.core.sampling_params import whole, within
from foredraft.heads.eagle import EagleConfig, EagleHead
from foredraft.training.batches import Batch
from foredraft.training.losses import Law, forward_kl
from foredraft.training.methods.head_method import HeadMethod
from foredraft.training.methods.lesson import Lesson, lesson_of
from foredraft.training.methods.method import Setting, StepLosses, register
from foredraft.training.methods.sizes import sizes_like, whole_vocabulary
from foredraft.training.methods.text_draws import text_generators
from foredraft.training.methods.unrolled import ChainLoss

NOISE_LENGTH = 512  # the published noise shrinks with texts longer than this


@dataclass(frozen=True, kw_only=True, slots=True)
class Eagle1Training:
    """How an EAGLE-1 head is made and trained; EAGLE-2 drafts with the same head. Raises `ConfigError`.

    Attributes:
        feature_weight: Of the smooth L1 distance to the target's own hidden state.
        token_weight: Of the divergence from the target's law over the next token.
        feature_noise: Width of the uniform noise on the features that are read; 0 is none.
        intermediate_size: Width of the MLP; the target's when not given.
        layers: Decoder layers.
        measured_steps: Chain length that agreement is measured for; training unrolls nothing.
    """

    feature_weight: float = 1.0
    token_weight: float = 0.1
    feature_noise: float = 0.0
    intermediate_size: int | None = None
    layers: int = 1
    measured_steps: int = 5

    def __post_init__(self) -> None:
        within("feature_weight", self.feature_weight, 0, 1000)
        within("token_weight", self.token_weight, 0, 1000)
        within("feature_noise", self.feature_noise, 0, 10)
        whole("layers", self.layers, 1, 16)
        whole("measured_steps", self.measured_steps, 1, 16)
        if self.intermediate_size is not None:
            whole("intermediate_size", self.intermediate_size, 1)


@register("eagle1", Eagle1Training)
class Eagle1Method(HeadMethod):
    """Trains the head of EAGLE-1 and EAGLE-2."""

    name, kind = "eagle1", "eagle"
    format = "eagle"
    boundaries: tuple[int, ...] = ()

    def __init__(self, options: Eagle1Training, setting: Setting):
        super().__init__(setting)
        target = setting.target
        self.options, self.draft_tokens = options, options.measured_steps
        self.vocabulary = whole_vocabulary(setting)
        sizes = sizes_like(target.config, intermediate_size=options.intermediate_size)
        config = EagleConfig(sizes=sizes, vocabulary=target.vocabulary.rows, layers=options.layers)
        self.module = EagleHead(config, target.borrowed).to(target.device)
        self.chain = ChainLoss(self.token_loss, (1.0,), measured=self.draft_tokens, recompute=setting.recompute)

    def loss(self, batch: Batch, step: int) -> StepLosses:
        lesson = lesson_of(batch, self.target.logits, self.vocabulary)
        features = self.noisy(batch, step) if torch.is_grad_enabled() else batch.final

        def distance(predicted: Tensor, taught: Lesson) -> Tensor:
            own = batch.final[taught.text, taught.row]  # row i + 1, whose hidden state row i predicts
            apart = smooth_l1_loss(predicted.float(), own.float(), reduction="none").mean(-1).sum()
            return self.options.feature_weight * apart

        return self.chain.over(self.module, features, batch, lesson, beside=distance)

    def token_loss(self, logits: Tensor, law: Law) -> Tensor:
        return self.options.token_weight * forward_kl(logits, law)

    def noisy(self, batch: Batch, step: int) -> Tensor:
        """The features read, each moved evenly by at most half the noise's width, less in long texts."""
        if not self.options.feature_noise:
            return batch.final
        width = self.options.feature_noise * min(1.0, NOISE_LENGTH / batch.final.shape[1])
        noise = torch.zeros(batch.final.shape, dtype=torch.float32)
        for text, (generator, length) in enumerate(
            zip(text_generators(self.seed, step, batch), batch.lengths.tolist(), strict=True)
        ):
            noise[text, :length] = torch.rand(length, noise.shape[-1], generator=generator) - 0.5
        return batch.final + (width * noise).to(batch.final)
