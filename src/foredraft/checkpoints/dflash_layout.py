"""The layout of DFlash's own repository, which SGLang and vLLM load."""

from foredraft.checkpoints.dflash_head import DFlashSchema, dflash_head
from foredraft.checkpoints.feature_layers import OUTPUTS, SHIFT
from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_output import HeadOutput, WrittenForm
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import config_of
from foredraft.heads.dflash import DFlashConfig

FORMAT = "DFlash"


def holds(source: HeadSource) -> bool:
    return isinstance(source.config.get("dflash_config"), dict) or any(
        str(name).startswith("DFlash") for name in source.config.get("architectures") or ()
    )


def read(source: HeadSource) -> HeadCheckpoint:
    options = source.config | (source.config.get("dflash_config") or {})
    causal = any(options.get(key) for key in ("causal", "is_causal", "dflash_query_causal"))
    source.note(causal, "rows of a block see only earlier ones, as in JetSpec")
    schema = DFlashSchema(
        format=FORMAT,
        options=options,
        layer=source.config,
        ids=options.get("target_layer_ids"),
        convention=OUTPUTS,
        causal=causal,
    )
    return dflash_head(source, schema)


def write(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, DFlashConfig)
    own = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": [layer - SHIFT[OUTPUTS] for layer in config.feature_layers],
        "causal": config.causal,
    }
    layers = {} if output.target_layers is None else {"num_target_layers": output.target_layers}
    values = config_of(config.sizes, layers=config.layers, vocabulary=config.vocabulary) | {
        "architectures": ["DFlashDraftModel"],
        "block_size": config.block_size,
        "dflash_config": own,
        **layers,
    }
    return WrittenForm(config=values, tensors=head.tensors)
