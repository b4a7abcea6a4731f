"""Takes a head over to the native path of its target, where that says what the head's own modules say.

Whatever is not covered stays in torch: layers of the target's own architecture, other activations, rotary embeddings
that change with the text's length. Nothing is borrowed twice: embedding and vocabulary head are the target's.
"""

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
from foredraft.model.native_decoder import BUILD_ERRORS, NativeDecoder
from foredraft.model.native_parts import StrangePart
from foredraft.model.native_run import PlanRunner
from foredraft.model.native_runtime import DTYPES, NotCovered

Native = NativeFeatureHead | NativeDFlash | NativeMedusa


def native_or_torch(head: nn.Module, decoder: object) -> nn.Module | Native:
    """`head` on the native path of its target's `decoder`, or itself with a `path` that says why not."""
    try:
        return native_head(head, decoder)
    except NotCovered as missing:
        head.path = f"torch: {missing}"
        return head


@torch.inference_mode()
def native_head(head: nn.Module, decoder: object) -> Native:
    """Raises `NotCovered` where the native path cannot run `head`, or does not say what it says."""
    if not isinstance(decoder, NativeDecoder):
        raise NotCovered("its target does not take the native path")
    dtype = next(head.parameters()).dtype
    if dtype != decoder.dtype:
        raise NotCovered("it has another dtype than its target")
    try:
        native = built(head, decoder, dtype)
    except StrangePart as part:
        raise NotCovered(f"native kernels do not cover a head with {part}") from None
    except BUILD_ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotCovered(f"native kernels refuse {type(head).__name__}: {reason}") from None
    if not reproduces(native, head, dtype):
        raise NotCovered("native kernels did not reproduce this head")
    return native


def built(head: nn.Module, decoder: NativeDecoder, dtype: torch.dtype) -> Native:
    runtime = decoder.runtime
    program = runtime.program(DTYPES[dtype])
    match head:
        case MedusaHeads():
            write_medusa(program, head)
            columns = head.config.heads * head.config.draft_vocabulary
            return NativeMedusa(head, PlanRunner(program, runtime, logits=columns, dtype=dtype))
        case DFlashHead():
            write_dflash(program, head, decoder)
            return NativeDFlash(head, PlanRunner(program, runtime, logits=head.config.vocabulary, dtype=dtype))
        case Eagle3Head():
            write_eagle3(program, head, decoder)
        case EagleHead():
            write_eagle(program, head, decoder)
        case MtpHead():
            write_mtp(program, head, decoder)
        case _:
            raise NotCovered(f"native kernels do not cover {type(head).__name__}")
    logits = len(head.target_ids) if head.target_ids is not None else head.config.vocabulary
    return NativeFeatureHead(head, PlanRunner(program, runtime, logits=logits, dtype=dtype))
