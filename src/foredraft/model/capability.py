"""What a checkpoint is and whether it can be run exactly, read from its config and class alone."""

import sys
from dataclasses import dataclass

from transformers import PretrainedConfig

from foredraft.core.errors import ModelError

EXACT_LAYERS = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True, slots=True)
class Capability:
    """The shape of a model as foredraft sees it.

    Attributes:
        architecture: The transformers class.
        layers, heads, kv_heads, hidden_size: Of the decoder.
        windows: Sliding window of each layer by index, none where it sees everything.
        context_length: Most positions the model was made for.
        vocabulary_rows: Width of a row of logits.
    """

    architecture: str
    layers: int
    heads: int
    kv_heads: int
    hidden_size: int
    windows: dict[int, int | None]
    context_length: int
    vocabulary_rows: int

    @property
    def feature_layers(self) -> tuple[int, int, int]:
        """Hidden states EAGLE-3 heads fuse by default: the input of layers 2, L // 2 and L - 3."""
        return (2, self.layers // 2, self.layers - 3)

    @property
    def sliding_layers(self) -> list[int]:
        return [layer for layer, window in self.windows.items() if window is not None]


def capability_of(model_class: type, config: PretrainedConfig) -> Capability:
    """Read a model's shape. Raises `ModelError` with the reason when it cannot be run exactly."""
    config = config.get_text_config()
    name = model_class.__name__
    refuse_recurrent(model_class, config, name)
    if not getattr(model_class, "_supports_attention_backend", False):
        raise ModelError(f"{name} cannot be run: its attention does not go through transformers' AttentionInterface")
    return Capability(
        architecture=name,
        layers=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or config.num_attention_heads,
        hidden_size=config.hidden_size,
        windows=windows_of(model_class, config),
        context_length=getattr(config, "max_position_embeddings", None) or 2**31,
        vocabulary_rows=config.vocab_size,
    )


def refuse_recurrent(model_class: type, config: PretrainedConfig, name: str) -> None:
    """Recurrent and convolution state cannot be rolled back to an arbitrary tree node."""
    kinds = set(getattr(config, "layer_types", None) or ()) - set(EXACT_LAYERS)
    if kinds:
        raise ModelError(f"{name} cannot be run exactly: it has layers of kind {', '.join(sorted(kinds))}")
    if getattr(model_class, "_is_stateful", False):
        raise ModelError(f"{name} cannot be run exactly: it keeps recurrent state that cannot be rolled back")


def windows_of(model_class: type, config: PretrainedConfig) -> dict[int, int | None]:
    """Sliding window of each layer; a config without layer kinds gives its window to all layers."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    if getattr(config, "use_sliding_window", True) is False or not makes_window_masks(model_class):
        window = None
    return {i: window if kind == "sliding_attention" else None for i, kind in enumerate(kinds)}


def makes_window_masks(model_class: type) -> bool:
    """Whether the model's code makes sliding masks; others may carry a `sliding_window` in their config unread."""
    return hasattr(sys.modules[model_class.__module__], "create_sliding_window_causal_mask")
