"""From tensors to a network: strict about names and shapes, careful with dtypes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from foredraft.core.errors import ModelError
from foredraft.heads.build import NETWORKS, build_head, check_tensors
from foredraft.heads.dflash import DFlashConfig
from foredraft.heads.eagle import Eagle3Config, EagleConfig
from foredraft.heads.layer import LayerSizes
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.heads.mtp import MtpConfig
from foredraft.heads.shared import Borrowed, vocabulary_maps

V, H = 24, 8
SIZES = LayerSizes(hidden_size=H, intermediate_size=12, heads=2, kv_heads=1, head_dim=4)
IDS = torch.tensor([1, 4, 9, 16])
CONFIGS = [
    EagleConfig(sizes=SIZES, vocabulary=V),
    Eagle3Config(sizes=SIZES, vocabulary=V, draft_vocabulary=4, target_hidden_size=H, feature_layers=(1, 2, 3)),
    MedusaConfig(hidden_size=H, vocabulary=V, heads=2, draft_vocabulary=4),
    MtpConfig(sizes=SIZES, vocabulary=V, own_head=True),
    DFlashConfig(
        sizes=SIZES, vocabulary=V, target_hidden_size=H, feature_layers=(1,), layers=2, block_size=3, mask_token_id=0
    ),
]
EVERY = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: type(config).__name__)


def borrowed() -> Borrowed:
    return Borrowed(nn.Embedding(V, H), nn.Linear(H, V, bias=False))


def tensors_of(config) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = NETWORKS[type(config)](config, borrowed()).state_dict()
    d2t, t2d = vocabulary_maps(IDS, V)
    maps = {"d2t": d2t, "t2d": t2d, "target_ids": IDS}
    return {name: maps.get(name, torch.randn(tensor.shape)) for name, tensor in state.items()}


def build(config, tensors, dtype=torch.float32, **parts):
    return build_head(config, tensors, borrowed(), dtype=dtype, device="cpu", **parts)


@EVERY
def test_every_network_is_built_of_its_tensors(config):
    tensors = tensors_of(config)
    head = build(config, tensors)
    assert all(torch.equal(head.state_dict()[name], tensor) for name, tensor in tensors.items())
    assert not head.training and not any(parameter.requires_grad for parameter in head.parameters())


@EVERY
def test_weights_are_cast_and_ids_and_frequencies_are_not(config):
    head = build(config, tensors_of(config), torch.bfloat16)
    assert {parameter.dtype for parameter in head.parameters()} == {torch.bfloat16}
    kinds = {name.rpartition(".")[2]: buffer.dtype for name, buffer in head.named_buffers()}
    wanted = {"d2t": torch.int64, "t2d": torch.bool, "target_ids": torch.int64, "inv_freq": torch.float32}
    assert all(wanted.get(name, torch.float32) == dtype for name, dtype in kinds.items())
    if hasattr(head, "target_ids") and head.target_ids is not None:
        assert head.target_ids.tolist() == IDS.tolist()


@EVERY
def test_misfits_are_refused_by_name(config):
    tensors = tensors_of(config)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    without = {key: tensor for key, tensor in tensors.items() if key != name}
    rows, columns = tensors[name].shape
    for check in (lambda made: build(config, made), lambda made: check_tensors(config, made)):
        with pytest.raises(ModelError, match=f"tensor {name} missing"):
            check(without)
        with pytest.raises(ModelError, match="has not: surplus"):
            check(tensors | {"surplus": torch.ones(1)})
        with pytest.raises(ModelError, match=rf"{name} is \[{rows + 1}, {columns}\]; its config makes it \[{rows}, "):
            check(tensors | {name: torch.ones(rows + 1, columns)})
    check_tensors(config, tensors)


def test_medusa_heads_borrow_nothing():
    config = CONFIGS[2]
    head = build_head(config, tensors_of(config), None, dtype=torch.float32, device="cpu")
    assert isinstance(head, MedusaHeads) and head(torch.ones(5, H)).shape == (2, 5, 4)


def test_a_layer_of_another_architecture_takes_the_place_of_ours():
    config = replace(CONFIGS[3], own_head=False)
    tensors = {name: tensor for name, tensor in tensors_of(config).items() if not name.startswith("layer.")}
    other = nn.Linear(H, H)
    weights = {"layer.weight": torch.eye(H), "layer.bias": torch.ones(H)}
    check_tensors(config, tensors | weights, besides="layer.")
    head = build(config, tensors | weights, layer=other, rotary=nn.Identity())
    assert head.layer is other and torch.equal(other.weight, torch.eye(H))


def test_a_rope_of_no_known_kind_is_refused():
    config = replace(CONFIGS[0], sizes=replace(SIZES, rope={"rope_type": "spiral", "rope_theta": 1.0}))
    with pytest.raises(ModelError, match="no network can be made of its config: .*spiral"):
        check_tensors(config, {})
