"""Multi-token prediction: one module, unrolled over its own output (FastMTP, 2509.18362)."""

from dataclasses import dataclass

from foredraft.core.sampling_params import whole, within
from foredraft.core.speculation_config import one_of
from foredraft.heads.mtp import MtpConfig, MtpHead
from foredraft.training.batches import Batch
from foredraft.training.losses import LOSSES
from foredraft.training.methods.head_method import HeadMethod
from foredraft.training.methods.lesson import lesson_of
from foredraft.training.methods.method import Setting, StepLosses, register
from foredraft.training.methods.sizes import copy_last_norm, sizes_like, whole_vocabulary
from foredraft.training.methods.unrolled import ChainLoss


@dataclass(frozen=True, kw_only=True, slots=True)
class MtpTraining:
    """How a multi-token prediction module is made and trained. Raises `ConfigError` naming the value.

    Attributes:
        loss: Of a row: kl, reverse_kl, tv or ce.
        mtp_steps: Unrolls, which is the longest chain the module learns to draft.
        mtp_beta: An unroll weighs this much of the one before it; weights add up to one.
        intermediate_size: Width of the MLP; the target's when not given.
        feed_normed: Feed back the hidden state after the module's last norm instead of before it.
    """

    loss: str = "kl"
    mtp_steps: int = 4
    mtp_beta: float = 0.6
    intermediate_size: int | None = None
    feed_normed: bool = False

    def __post_init__(self) -> None:
        one_of("loss", self.loss, tuple(LOSSES))
        whole("mtp_steps", self.mtp_steps, 1, 16)
        within("mtp_beta", self.mtp_beta, 0, 1)
        if self.intermediate_size is not None:
            whole("intermediate_size", self.intermediate_size, 1)


@register("mtp", MtpTraining)
class MtpMethod(HeadMethod):
    """Trains one shared module; embedding and output layer stay the target's."""

    name = kind = "mtp"
    boundaries: tuple[int, ...] = ()

    def __init__(self, options: MtpTraining, setting: Setting):
        super().__init__(setting)
        target = setting.target
        self.vocabulary, self.draft_tokens = whole_vocabulary(setting), options.mtp_steps
        sizes = sizes_like(target.config, intermediate_size=options.intermediate_size)
        config = MtpConfig(sizes=sizes, vocabulary=target.vocabulary.rows, feed_normed=options.feed_normed)
        self.module = MtpHead(config, target.borrowed).to(target.device)
        copy_last_norm(target, self.module.norm)
        weights = normalised(options.mtp_beta, options.mtp_steps)
        self.chain = ChainLoss(LOSSES[options.loss], weights, measured=len(weights), recompute=setting.recompute)

    def loss(self, batch: Batch, step: int) -> StepLosses:
        lesson = lesson_of(batch, self.target.logits, self.vocabulary)
        return self.chain.over(self.module, batch.final, batch, lesson)


def normalised(beta: float, steps: int) -> tuple[float, ...]:
    """`beta^k` over their sum."""
    powers = [beta**step for step in range(steps)]
    return tuple(power / sum(powers) for power in powers)
