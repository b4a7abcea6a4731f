"""The speculators format, which vLLM loads: EAGLE-3, DFlash and MTP heads in one schema."""

from collections.abc import Callable

from foredraft.checkpoints.dflash_head import DFlashSchema, dflash_head
from foredraft.checkpoints.eagle3_head import Eagle3Schema, eagle3_head, plain_tensors
from foredraft.checkpoints.feature_layers import BOUNDARIES
from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_output import HeadOutput, WrittenForm
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.layer_config import config_of
from foredraft.checkpoints.mtp_head import SPECULATORS, MtpSchema, mtp_head
from foredraft.core.errors import ConfigError, ModelError, require
from foredraft.core.speculation_config import unknown
from foredraft.heads.dflash import DFlashConfig
from foredraft.heads.eagle import Eagle3Config
from foredraft.heads.mtp import MtpConfig
from foredraft.model.features import FINAL_NORM

FORMAT = "speculators"
VERSION = "0.3.0"


def holds(source: HeadSource) -> bool:
    return "speculators_model_type" in source.config or "speculators_config" in source.config


def read(source: HeadSource) -> HeadCheckpoint:
    kind = source.config.get("speculators_model_type") or source.config["speculators_config"].get("algorithm")
    require(kind in READERS, unknown("speculators model type", kind, READERS), ModelError)
    layer = source.config.get("transformer_layer_config")
    require(isinstance(layer, dict), "its config holds no transformer_layer_config", ModelError)
    return READERS[kind](source, layer)


def read_eagle3(source: HeadSource, layer: dict) -> HeadCheckpoint:
    schema = Eagle3Schema(
        format=FORMAT,
        options=source.config,
        layer=layer,
        ids=source.config.get("eagle_aux_hidden_state_layer_ids"),
        convention=BOUNDARIES,
        normed_residual=True,
    )
    return eagle3_head(source, schema, plain_tensors(source, lambda name: not name.startswith("verifier_")))


def read_dflash(source: HeadSource, layer: dict) -> HeadCheckpoint:
    ids = source.config.get("aux_hidden_state_layer_ids")
    schema = DFlashSchema(
        format=FORMAT, options=source.config, layer=layer, ids=ids, convention=BOUNDARIES, causal=False
    )
    return dflash_head(source, schema)


def read_mtp(source: HeadSource, layer: dict) -> HeadCheckpoint:
    feeds = source.config.get("feed_normed", True)
    schema = MtpSchema(format=FORMAT, naming=SPECULATORS, prefix="mtp_layers.0.", layer=layer, feed_normed=feeds)
    return mtp_head(source, schema)


READERS: dict[str, Callable[[HeadSource, dict], HeadCheckpoint]] = {
    "eagle3": read_eagle3,
    "dflash": read_dflash,
    "mtp": read_mtp,
}


def write_eagle3(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, Eagle3Config)
    message = "speculators has no layer id for hidden states after the last norm; format eagle has a word for them"
    require(FINAL_NORM not in config.feature_layers, message)
    values = schema_of("eagle3", "Eagle3Speculator", output) | {
        "draft_vocab_size": config.draft_vocabulary,
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "embed_requires_grad": False,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "target_hidden_size": config.target_hidden_size,
        "transformer_layer_config": config_of(config.sizes, layers=config.layers, vocabulary=config.vocabulary),
    }
    return WrittenForm(config=values, tensors=head.tensors)


def write_dflash(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, DFlashConfig)
    require(
        not config.causal, "speculators' dflash heads are not causal inside a block; format dflash holds those that are"
    )
    values = schema_of("dflash", "DFlashSpeculator", output) | {
        "draft_vocab_size": config.vocabulary,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "aux_hidden_state_layer_ids": list(config.feature_layers),
        "target_hidden_size": config.target_hidden_size,
        "transformer_layer_config": config_of(config.sizes, layers=config.layers, vocabulary=config.vocabulary),
    }
    return WrittenForm(config=values, tensors=head.tensors)


def write_mtp(head: HeadCheckpoint, output: HeadOutput) -> WrittenForm:
    config = head.config
    assert isinstance(config, MtpConfig)
    require(
        head.layer_of is None,
        f"this MTP module is a layer of {head.layer_of}; engines load it from the target's own checkpoint, not apart",
        ConfigError,
    )
    values = schema_of("mtp", "MTPDraftModel", output) | {
        "num_nextn_predict_layers": 1,
        "feed_normed": config.feed_normed,
        "transformer_layer_config": config_of(config.sizes, layers=1, vocabulary=config.vocabulary),
    }
    fed = "vLLM feeds the normed hidden state back; this head was made to be fed the one before the norm"
    return WrittenForm(
        config=values,
        tensors=SPECULATORS.published(head.tensors, "mtp_layers.0."),
        notes=() if config.feed_normed else (fed,),
    )


def schema_of(kind: str, architecture: str, output: HeadOutput) -> dict:
    """The keys every speculators config has."""
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": output.speculative_tokens,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    verifier = {"name_or_path": output.target_name, "architectures": list(output.target_architectures)}
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": verifier,
        },
    }
