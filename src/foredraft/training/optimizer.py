"""Which steps the weights take: AdamW or Muon, a warm-up, a cosine, a bound on the gradient."""

import math
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

OPTIMIZERS = ("adamw", "muon")
BETAS = (0.9, 0.95)
FLOOR = 0.1  # of the learning rate, where the cosine ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """Learning rate by step: a linear warm-up, then a cosine down to a tenth.

    Attributes:
        peak: Highest rate.
        steps: Of the whole run.
        warmup: Share of the steps that warm up.
    """

    peak: float
    steps: int
    warmup: float

    def at(self, step: int) -> float:
        """Rate of step `step`, from 0."""
        rising = max(1, round(self.warmup * self.steps))
        if step < rising:
            return self.peak * (step + 1) / rising
        progress = (step - rising) / max(1, self.steps - rising)
        return self.peak * (FLOOR + (1 - FLOOR) * 0.5 * (1 + math.cos(math.pi * progress)))


class Optimizers:
    """One optimizer, or two that share the weights between them, stepped as one."""

    def __init__(self, module: nn.Module, kind: str, *, weight_decay: float):
        """`kind`: adamw, or muon, which takes the matrices between layers and leaves the rest to AdamW."""
        named = [(name, weight) for name, weight in module.named_parameters() if weight.requires_grad]
        inner = {name for name, weight in named if kind == "muon" and is_inner_matrix(name, weight)}
        rest = [weight for name, weight in named if name not in inner]
        matrices = [weight for name, weight in named if name in inner]
        self.parameters = matrices + rest
        self.parts: list[Optimizer] = []
        if matrices:
            self.parts.append(Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"))
        if rest:
            self.parts.append(AdamW(decayed(rest, weight_decay), betas=BETAS))

    def step(self, rate: float, *, divisor: float, clip: float) -> float:
        """Divide the gradients, bound their norm, step and clear them; returns the norm before the bound."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.grad.div_(divisor)
        norm = nn.utils.clip_grad_norm_(self.parameters, clip)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)
        return float(norm)

    def state(self) -> list[dict]:
        return [part.state_dict() for part in self.parts]

    def load(self, state: list[dict]) -> None:
        for part, own in zip(self.parts, state, strict=True):
            part.load_state_dict(own)


def is_inner_matrix(name: str, weight: Tensor) -> bool:
    return weight.ndim == 2 and not any(part in name for part in ("lm_head", "embed"))


def decayed(weights: list[Tensor], weight_decay: float) -> list[dict]:
    """Parameter groups: matrices decay, norms and biases do not."""
    groups = ((weight_decay, [w for w in weights if w.ndim > 1]), (0.0, [w for w in weights if w.ndim < 2]))
    return [{"params": own, "weight_decay": decay} for decay, own in groups if own]
