"""Sizes of a head's decoder layers from a published config, and such a config from sizes."""

import re
from collections.abc import Iterable

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PretrainedConfig

from foredraft.checkpoints.head import Tensors
from foredraft.checkpoints.head_source import HeadSource
from foredraft.core.errors import ModelError, require
from foredraft.heads.layer import LayerSizes

SIZE_KEYS = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "hidden_act",
    "max_position_embeddings",
)
KNOWN_LAYERS = ("llama", "qwen2", "qwen3", "mistral")
NO_ROPE = "no rope_theta in the config: 10000, the base such heads are trained with; the target's is not inherited"


def sizes_of(source: HeadSource, config: dict, tensors: Tensors, *, layer: str = "layers.0") -> LayerSizes:
    """Sizes of the layers that `config` describes; what only weights tell is read from those of `layer`."""
    known = completed(config)
    refuse_partial_rotation(config)
    source.note(slides(config), f"trained with a sliding window of {config.get('sliding_window')}: none is applied")
    return LayerSizes(
        hidden_size=known.hidden_size,
        intermediate_size=known.intermediate_size,
        heads=known.num_attention_heads,
        kv_heads=getattr(known, "num_key_value_heads", None) or known.num_attention_heads,
        head_dim=getattr(known, "head_dim", None) or known.hidden_size // known.num_attention_heads,
        rms_norm_eps=known.rms_norm_eps,
        hidden_act=known.hidden_act,
        rope=rope_of(source, config),
        max_positions=known.max_position_embeddings,
        attention_bias=f"{layer}.self_attn.q_proj.bias" in tensors,
        head_norms=f"{layer}.self_attn.q_norm.weight" in tensors,
    )


def completed(config: dict) -> PretrainedConfig:
    """`config` with the defaults of its model type, which published files leave out."""
    kind = config.get("model_type")
    given = {key: config[key] for key in SIZE_KEYS if config.get(key) is not None}
    try:
        return AutoConfig.for_model(kind if kind in KNOWN_LAYERS else "llama", **given)
    except (ValueError, TypeError, ZeroDivisionError, StrictDataclassError) as error:
        raise ModelError(f"its config makes no decoder layer: {' '.join(str(error).split())}") from None


def rope_of(source: HeadSource, config: dict) -> dict:
    """transformers' rope parameters, from either of their two spellings."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if any(isinstance(value, dict) for value in rope.values()):  # one for each kind of layer
        rope = rope.get("full_attention") or next(value for value in rope.values() if isinstance(value, dict))
    theta = source.reading.rope_theta or rope.get("rope_theta") or config.get("rope_theta")
    source.note(theta is None, NO_ROPE)
    source.note(source.reading.rope_theta is not None, f"rope_theta {source.reading.rope_theta} as asked for")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    rest = {key: value for key, value in rope.items() if key != "type"}
    return rest | {"rope_type": kind, "rope_theta": 10000.0 if theta is None else theta}


def refuse_partial_rotation(config: dict) -> None:
    part = partial_rotation(config)
    require(part == 1, f"its config rotates {part} of a head; a head's layers rotate all of it", ModelError)


def partial_rotation(config: dict) -> float:
    """Share of a head's dimensions that are rotated."""
    rope = config.get("rope_parameters") or {}
    return rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1


def slides(config: dict) -> bool:
    kinds = config.get("layer_types")
    used = "sliding_attention" in kinds if kinds else config.get("use_sliding_window", True)
    return bool(used and config.get("sliding_window"))


def counted(names: Iterable[str], pattern: str) -> int:
    """One more than the highest number that `pattern` finds at the start of a name."""
    found = [int(match[1]) for match in map(re.compile(pattern).match, names) if match]
    return max(found, default=-1) + 1


def config_of(sizes: LayerSizes, *, layers: int, vocabulary: int) -> dict:
    """A config of decoder layers as transformers 4 and 5 both read it."""
    scaling = {key: value for key, value in sizes.rope.items() if key != "rope_theta"}
    scaled = {"rope_scaling": scaling} if sizes.rope["rope_type"] != "default" else {}
    bias = {"qkv_bias": True} if sizes.attention_bias else {}  # attention_bias would promise one of o_proj too
    return {
        "model_type": "qwen3" if sizes.head_norms else "llama",
        "hidden_size": sizes.hidden_size,
        "intermediate_size": sizes.intermediate_size,
        "num_hidden_layers": layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "rms_norm_eps": sizes.rms_norm_eps,
        "hidden_act": sizes.hidden_act,
        "max_position_embeddings": sizes.max_positions,
        "vocab_size": vocabulary,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "rope_theta": sizes.rope["rope_theta"],
        "rope_parameters": dict(sizes.rope),
        **scaled,
        **bias,
    }
