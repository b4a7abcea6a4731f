"""From a config and tensors to a network ready to draft, and what tensors a config asks for."""

from collections.abc import Callable, Mapping

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn

from foredraft.core.errors import ModelError, require
from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.heads.eagle import Eagle3Config, Eagle3Head, EagleConfig, EagleHead
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.heads.mtp import MtpConfig, MtpHead
from foredraft.heads.shared import Borrowed

NETWORKS: dict[type, Callable[..., nn.Module]] = {
    EagleConfig: EagleHead,
    Eagle3Config: Eagle3Head,
    MedusaConfig: lambda config, borrowed: MedusaHeads(config),
    MtpConfig: MtpHead,
    DFlashConfig: DFlashHead,
}


def build_head(
    config: object,
    tensors: Mapping[str, Tensor],
    borrowed: Borrowed | None,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    **parts: nn.Module,
) -> nn.Module:
    """The network of `config` with `tensors`, in evaluation mode and without gradients.

    Weights are cast to `dtype`; maps of ids keep theirs, and rotary frequencies stay fp32. `parts` take the place of
    the network's own modules, as the layer of an MTP module of another architecture does. Raises `ModelError` for a
    tensor that is missing, superfluous or of the wrong shape.
    """
    head = NETWORKS[type(config)](config, borrowed, **parts)
    refuse_misfits(head.state_dict(), tensors)
    head.load_state_dict({name: placed(tensor, dtype, device) for name, tensor in tensors.items()}, assign=True)
    return head.to(device).eval().requires_grad_(False)


def placed(tensor: Tensor, dtype: torch.dtype, device: torch.device | str) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else None)


def check_tensors(config: object, tensors: Mapping[str, Tensor], *, besides: str | None = None) -> None:
    """Raise `ModelError` unless `tensors` are those of the network of `config`; names that start with `besides` may be
    any. Costs no memory: the network is made of shapes alone."""
    try:
        with torch.device("meta"):
            wanted = NETWORKS[type(config)](config, Borrowed(nn.Identity(), nn.Identity())).state_dict()
    except (KeyError, ValueError, RuntimeError, TypeError, StrictDataclassError) as error:
        reason = " ".join(f"{type(error).__name__} {error}".split())
        raise ModelError(f"no network can be made of its config: {reason}") from None
    refuse_misfits(less(wanted, besides), less(tensors, besides))


def less(tensors: Mapping[str, Tensor], start: str | None) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if start is None or not name.startswith(start)}


def refuse_misfits(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    missing, strange = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    require(not missing, f"tensor {missing[0] if missing else ''}{more} missing from the head", ModelError)
    require(not strange, f"a tensor its network has not: {strange[0] if strange else ''}", ModelError)
    for name, tensor in wanted.items():
        require(
            tensor.shape == found[name].shape,
            f"tensor {name} is {list(found[name].shape)}; its config makes it {list(tensor.shape)}",
            ModelError,
        )
