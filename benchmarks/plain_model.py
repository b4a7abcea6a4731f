"""The weights foredraft runs, in a plain transformers model with its own attention."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from foredraft.model.int8_weights import INT8_FILE, read_int8
from foredraft.model.loading import find_checkpoint

ATTENTION = "sdpa"


def load_plain(name: str, dtype: torch.dtype) -> PreTrainedModel:
    """`name` as foredraft finds it: a folder, a hub id or an embedded name, whose int8 file is unpacked."""
    checkpoint = find_checkpoint(name)
    int8 = Path(checkpoint.path) / INT8_FILE
    if int8.exists():
        module = AutoModelForCausalLM.from_config(checkpoint.config, dtype=dtype, attn_implementation=ATTENTION)
        module.load_state_dict(read_int8(int8, dtype), strict=False)
    else:
        module = AutoModelForCausalLM.from_pretrained(checkpoint.path, dtype=dtype, attn_implementation=ATTENTION)
    return module.eval().requires_grad_(False)
