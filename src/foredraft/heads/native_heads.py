"""Takes a head over to the native path of its target, where that says what the head's own modules say.

Whatever is not covered stays in torch: layers of the target's own architecture, other activations, rotary embeddings
that change with the text's length. Nothing is borrowed twice: embedding and vocabulary head are the target's.
"""

from typing import Any

import torch
from torch import nn

from foredraft.heads.dflash import DFlashHead
from foredraft.heads.eagle import Eagle3Head, EagleHead
from foredraft.heads.medusa import MedusaHeads
from foredraft.heads.mtp import MtpHead
from foredraft.heads.native_dflash import NativeDFlash, write_dflash
from foredraft.heads.native_eagle import write_eagle, write_eagle3
from foredraft.heads.native_feature_head import NativeFeatureHead
from foredraft.heads.native_medusa import NativeMedusa, write_medusa
from foredraft.heads.native_mtp import write_mtp
from foredraft.heads.native_trial import reproduces
from foredraft.model.int8_weights import GROUP
from foredraft.model.native_decoder import BUILD_ERRORS, NativeDecoder, refusal
from foredraft.model.native_parts import StrangePart
from foredraft.model.native_run import PlanRunner
from foredraft.model.native_runtime import DTYPES, NotCovered
from foredraft.model.program_writer import SAME

Native = NativeFeatureHead | NativeDFlash | NativeMedusa


def native_or_torch(head: nn.Module, decoder: object, weights: str = SAME) -> nn.Module | Native:
    """`head` on the native path of its target's `decoder`, or itself with a `path` that says why not.

    There its weights have the format `weights`, where its width allows that.
    """
    try:
        return native_head(head, decoder, weights)
    except NotCovered as missing:
        head.path = f"torch: {missing}"
        return head


@torch.inference_mode()
def native_head(head: nn.Module, decoder: object, weights: str = SAME) -> Native:
    """Raises `NotCovered` where the native path cannot run `head`, or does not say what it says."""
    if not isinstance(decoder, NativeDecoder):
        raise NotCovered("its target does not take the native path")
    dtype = next(head.parameters()).dtype
    if dtype != decoder.dtype:
        raise NotCovered("it has another dtype than its target")
    try:
        native = built(head, decoder, dtype, weights)
    except StrangePart as part:
        raise NotCovered(f"native kernels do not cover a head with {part}") from None
    except BUILD_ERRORS as error:
        raise refusal(head, error) from None
    if not reproduces(native, head, dtype):
        raise NotCovered("native kernels did not reproduce this head")
    return native


def built(head: nn.Module, decoder: NativeDecoder, dtype: torch.dtype, weights: str) -> Native:
    program = decoder.runtime.program(DTYPES[dtype])
    form = SAME if decoder.width % GROUP else weights
    network, logits = write_program(program, head, decoder, form)
    return network(head, PlanRunner(program, decoder.runtime, logits=logits, dtype=dtype, weights=form))


def write_program(program: Any, head: nn.Module, target: NativeDecoder, weights: str) -> tuple[type[Native], int]:
    """Write the program of `head` with `weights`: what answers by it, and how many logits a row has."""
    config = head.config
    match head:
        case MedusaHeads():
            write_medusa(program, head, weights)
            return NativeMedusa, config.heads * config.draft_vocabulary
        case DFlashHead():
            write_dflash(program, head, target, weights)
            return NativeDFlash, config.vocabulary
        case Eagle3Head():
            write_eagle3(program, head, target, weights)
            return NativeFeatureHead, config.draft_vocabulary
        case EagleHead():
            write_eagle(program, head, target, weights)
            return NativeFeatureHead, config.vocabulary
        case MtpHead():
            write_mtp(program, head, target, weights)
            return NativeFeatureHead, config.vocabulary
    raise NotCovered(f"native kernels do not cover {type(head).__name__}")
