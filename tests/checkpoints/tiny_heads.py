"""Random heads in canonical form, and folders made tensor by tensor to published schemas."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_checkpoint import find_head
from foredraft.heads.build import NETWORKS
from foredraft.heads.dflash import DFlashConfig
from foredraft.heads.eagle import Eagle3Config, EagleConfig
from foredraft.heads.layer import LayerSizes
from foredraft.heads.medusa import MedusaConfig
from foredraft.heads.mtp import MtpConfig
from foredraft.heads.shared import Borrowed, vocabulary_maps
from foredraft.model.capability import Capability

V, H, LAYERS, DRAFT = 40, 16, 8, 12
TARGET = Capability(
    architecture="LlamaForCausalLM",
    layers=LAYERS,
    heads=4,
    kv_heads=2,
    hidden_size=H,
    windows=dict.fromkeys(range(LAYERS)),
    context_length=64,
    vocabulary_rows=V,
)
SIZES = LayerSizes(hidden_size=H, intermediate_size=24, heads=4, kv_heads=2, head_dim=6)
QWEN_SIZES = replace(SIZES, head_norms=True, attention_bias=True, rms_norm_eps=1e-5, max_positions=128)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
IDS = torch.tensor([0, 2, 3, 5, 8, 13, 21, 22, 30, 31, 38, 39])
LLAMA_VALUES = {  # of a published config.json, without rope
    "hidden_size": H,
    "intermediate_size": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 2048,
    "vocab_size": V,
}
EAGLE3 = Eagle3Config(sizes=SIZES, vocabulary=V, draft_vocabulary=DRAFT, target_hidden_size=H, feature_layers=(2, 4, 5))
DFLASH = DFlashConfig(
    sizes=replace(SIZES, head_norms=True),
    vocabulary=V,
    target_hidden_size=H,
    feature_layers=(2, 4, 6, 8),
    layers=2,
    block_size=4,
    mask_token_id=39,
)
MEDUSA = MedusaConfig(hidden_size=H, vocabulary=V, heads=3, draft_vocabulary=V)
METHODS = {
    EagleConfig: "eagle",
    Eagle3Config: "eagle3",
    MedusaConfig: "medusa",
    MtpConfig: "mtp",
    DFlashConfig: "dflash",
}


def random_head(config, dtype: torch.dtype = torch.float32, seed: int = 0) -> HeadCheckpoint:
    """A head of `config` with random weights and true maps."""
    network = NETWORKS[type(config)](config, Borrowed(nn.Identity(), nn.Identity()))
    return HeadCheckpoint(
        name="random",
        method=METHODS[type(config)],
        format="made",
        config=config,
        tensors=filled(network.state_dict(), dtype, seed),
    )


def filled(state: dict[str, Tensor], dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = {name: torch.randn(tensor.shape, generator=generator).to(dtype) for name, tensor in state.items()}
    d2t, t2d = vocabulary_maps(IDS, V)
    maps = {"d2t": d2t, "t2d": t2d, "target_ids": IDS}
    return drawn | {name: maps[name] for name in maps if name in drawn}


def publish(folder: Path, config: dict, tensors: dict[str, Tensor], file: str = "model.safetensors") -> str:
    """Write a folder as somebody else would have."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    whole = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / file) if file.endswith(".safetensors") else torch.save(whole, folder / file)
    return str(folder)


def found(folder: str, method: str | None = None, **options) -> HeadCheckpoint:
    return find_head(folder, method=method, target=options.pop("target", TARGET), **options)


def eagle3_tensors(layers: int = 1, fused: int = 3) -> dict[str, Tensor]:
    """The tensors of a published EAGLE-3 head under the names of EAGLE's repository."""
    config = replace(EAGLE3, layers=layers, feature_layers=tuple(range(fused)))
    tensors = random_head(config).tensors
    return {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two state dicts are equal bit for bit."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype and torch.equal(first[name], second[name]) for name in first
    )
