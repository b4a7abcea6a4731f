"""From a config to the loaded network of a learned drafter."""

from torch import nn

from foredraft.checkpoints.head_checkpoint import HeadCheckpoint, default_head, find_head
from foredraft.core.errors import require
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.heads.build import build_head
from foredraft.heads.native_heads import Native, native_or_torch
from foredraft.heads.shared import Borrowed
from foredraft.model.capture import require_boundaries
from foredraft.model.devices import DRAFT_INT8
from foredraft.model.program_writer import INT8
from foredraft.model.target import ModelTarget

Head = nn.Module | Native


def load_head(config: SpeculationConfig, target: ModelTarget) -> tuple[HeadCheckpoint, Head]:
    """The head that `config` names, or the embedded one of `target`, ready to draft.

    Raises `ConfigError` where there is none and `ModelError` where it does not fit.
    """
    found = read_head(config, target)
    return found, ready_head(config, found, target)


def read_head(config: SpeculationConfig, target: ModelTarget) -> HeadCheckpoint:
    method = config.method
    require(isinstance(target, ModelTarget), f"{target.name} is no loaded model; {method} cannot draft for it")
    name = config.model or default_head(target.name, method)
    return find_head(name, method=method, target=target.model.capability, target_path=target.path)


def ready_head(config: SpeculationConfig, found: HeadCheckpoint, target: ModelTarget, **parts: nn.Module) -> Head:
    """The network of `found` on the target's device, on the native path where its target takes it.

    `parts` take the place of its own modules. Raises `ConfigError` where `config` asks for weights it cannot have.
    """
    module, dtype, device = target.model.module, target.model.dtype, target.place.torch_device
    borrowed = Borrowed(module.get_input_embeddings(), module.get_output_embeddings())
    head = build_head(found.config, found.tensors, borrowed, dtype=dtype, device=device, **parts)
    require_boundaries(module, head.feature_layers)
    place = target.place.for_drafts(config.draft_weights, dtype)
    ready = native_or_torch(head, target.model.decoder, place.weights)
    if ready is head:
        possible = config.draft_weights != INT8
        require(possible, f"{DRAFT_INT8}; that takes the native path, and {found.name!r} runs in {head.path}")
        place.prepare(head)
    return ready
