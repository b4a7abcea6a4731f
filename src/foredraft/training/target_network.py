"""The frozen model whose law is learnt, as a plain transformers module over whole texts.

Shapes: B texts of T tokens, padded on the right; n boundaries; H hidden, V vocabulary.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from foredraft.core.errors import ModelError, PromptError, require
from foredraft.core.vocabulary import Vocabulary
from foredraft.heads.shared import Borrowed
from foredraft.model.capability import Capability
from foredraft.model.capture import capturing, require_boundaries
from foredraft.model.devices import find_device, find_dtype
from foredraft.model.features import FINAL_NORM
from foredraft.model.loading import (
    Checkpoint,
    find_checkpoint,
    first_line,
    load_module,
    load_tokenizer,
    quiet_transformers,
    vocabulary_of,
)
from foredraft.model.trial import agree
from foredraft.training.provenance import file_hash

TRIAL_TEXT = (5, 3, 7, 4, 6, 2, 8, 9)
ATTENTIONS = ("sdpa", "eager")  # fastest first
TRIAL_ERRORS = (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError)
HASHED_FILES = ("config.json", "*.safetensors", "*.bin")


@dataclass(frozen=True, slots=True)
class TargetStates:
    """What the target computed over texts.

    Attributes:
        features: Hidden states at the boundaries asked for, side by side in their order, [B, T, n H].
        final: Hidden states after the last norm, which the output layer reads, [B, T, H].
    """

    features: Tensor
    final: Tensor


class TargetNetwork:
    """A target without a cache: states and logits of whole texts, no gradients.

    Attributes:
        name: As the user gave it.
        checkpoint: Where it was found.
        module: The transformers model.
        tokenizer, vocabulary: Its tokens.
        attention: Which of transformers' attentions it runs through.
    """

    def __init__(self, checkpoint: Checkpoint, module: nn.Module, tokenizer, vocabulary: Vocabulary):
        self.name, self.checkpoint, self.module = checkpoint.name, checkpoint, module
        self.tokenizer, self.vocabulary = tokenizer, vocabulary
        self.attention = chosen_attention(module, self.vocabulary.rows)
        self.scaled = chosen_scaling(self)

    @classmethod
    def load(cls, name: str, *, dtype: str = "auto", device: str = "auto") -> "TargetNetwork":
        """Load `name` in `dtype` on `device`. Raises `ModelError` or `ConfigError`."""
        place = find_device(device)
        checkpoint = find_checkpoint(name)
        module = load_module(checkpoint, find_dtype(dtype, place), place.torch_device)
        tokenizer = load_tokenizer(checkpoint)
        return cls(checkpoint, module, tokenizer, vocabulary_of(checkpoint, tokenizer))

    @property
    def config(self) -> PretrainedConfig:
        return self.module.config

    @property
    def capability(self) -> Capability:
        return self.checkpoint.capability

    @property
    def device(self) -> torch.device:
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        return self.module.dtype

    @cached_property
    def borrowed(self) -> Borrowed:
        return Borrowed(self.module.get_input_embeddings(), self.module.get_output_embeddings())

    @cached_property
    def fingerprint(self) -> str:
        """Hash of its config and weights."""
        return fingerprint(self.checkpoint.path, self.config)

    @torch.no_grad()
    def features(self, tokens: Tensor, boundaries: tuple[int, ...]) -> TargetStates:
        """States of texts [B, T], in the target's dtype.

        Boundary i is the residual stream that enters layer i, L the one that leaves the last layer before the final
        norm, `FINAL_NORM` the normed one. Texts of different lengths need no mask: they are padded on the right and
        attention is causal, so no row of a text sees its padding, and rows of padding are read by nobody.

        Raises `ModelError` for a boundary the target has not, `PromptError` for texts longer than its context.
        """
        require_boundaries(self.module, boundaries)
        longest, context = tokens.shape[1], self.capability.context_length
        message = f"a sample has {longest} tokens; the context of {self.name} holds {context}; cut samples shorter"
        require(longest <= context, message, PromptError)
        with capturing(self.module, (*boundaries, FINAL_NORM)) as states:
            self.module.get_decoder()(input_ids=tokens.to(self.device), use_cache=False)
        final = states[FINAL_NORM]
        parts = [states[boundary] for boundary in boundaries]
        return TargetStates(torch.cat(parts, dim=-1) if parts else final[..., :0], final)

    @torch.no_grad()
    def logits(self, final: Tensor) -> Tensor:
        """Logits [..., V] of hidden states after the last norm, [..., H]."""
        return self.scaled(self.borrowed.head(final.to(self.dtype)))


def chosen_attention(module: nn.Module, rows: int) -> str:
    """Set the fastest attention that says what the eager one says: some leave out sinks or refuse soft-capping."""
    wanted = trial_logits(module, rows, "eager")
    for name in ATTENTIONS:
        try:
            if agree(wanted, trial_logits(module, rows, name), module.dtype):
                return name
        except TRIAL_ERRORS:
            continue
    raise ModelError(f"{type(module).__name__} cannot be run over whole texts: its forward does not repeat itself")


@torch.no_grad()
def trial_logits(module: nn.Module, rows: int, attention: str) -> Tensor:
    """Logits over a short text, [T, V]."""
    with quiet_transformers():
        module.set_attn_implementation(attention)
    tokens = torch.tensor([TRIAL_TEXT], device=module.device) % rows
    try:
        return module(input_ids=tokens, use_cache=False).logits[0]
    except TRIAL_ERRORS as error:
        raise ModelError(f"{type(module).__name__} cannot be run over whole texts: {first_line(error)}") from None


Scaling = Callable[[Tensor], Tensor]


def chosen_scaling(target: TargetNetwork) -> Scaling:
    """What the model does to its output layer's product: nothing, or what its config says.

    Raises `ModelError` where neither gives the model's own logits.
    """
    wanted = trial_logits(target.module, target.vocabulary.rows, target.attention)
    tokens = torch.tensor([TRIAL_TEXT]) % target.vocabulary.rows
    with torch.no_grad():
        product = target.borrowed.head(target.features(tokens, ()).final[0])
    for scaling in scalings(target.config.get_text_config()):
        if agree(wanted, scaling(product), target.dtype):
            return scaling
    raise ModelError(f"{target.name} changes its logits after the output layer in a way that is not known here")


def scalings(config: PretrainedConfig) -> list[Scaling]:
    """Ways of known architectures: plain, capped (Gemma), divided (Granite), multiplied (Cohere)."""
    cap = getattr(config, "final_logit_softcapping", None)
    divisor, factor = getattr(config, "logits_scaling", None), getattr(config, "logit_scale", None)
    known: list[tuple[float | None, Scaling]] = [
        (cap, lambda logits: torch.tanh(logits / cap) * cap),
        (divisor, lambda logits: logits / divisor),
        (factor, lambda logits: logits * factor),
    ]
    return [*(scaling for value, scaling in known if value), lambda logits: logits]


def fingerprint(path: str | None, config: PretrainedConfig) -> str:
    """Hash of the files of a model folder; for a hub model the commit it was fetched at."""
    folder = Path(path or "")
    if path is None or not folder.is_dir():
        return f"{path} {getattr(config, '_commit_hash', None)}"
    files = sorted(file for pattern in HASHED_FILES for file in folder.glob(pattern))
    listed = "".join(f"{file.name} {file_hash(file)}\n" for file in files)
    return hashlib.sha256(listed.encode()).hexdigest()
