"""Multi-token prediction modules inside a target's own checkpoint, or alone under the same names."""

import re
from dataclasses import dataclass

from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_source import HeadSource
from foredraft.checkpoints.mtp_head import DEEPSEEK, MIMO, QWEN, MtpNaming, MtpSchema, mtp_head
from foredraft.core.errors import ModelError, require


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """One way targets keep their module.

    Attributes:
        format: In words.
        mark: A tensor name that only such a module has; its group is the prefix of all.
        naming: Of its tensors.
        feed_normed: Whether the family's engines feed back the normed hidden state.
    """

    format: str
    mark: re.Pattern
    naming: MtpNaming
    feed_normed: bool


FAMILIES = (
    Family(
        format="MTP tensors as in DeepSeek-V3",
        mark=re.compile(r"((?:.*\.)?layers\.\d+\.)eh_proj\.weight"),
        naming=DEEPSEEK,
        feed_normed=False,
    ),
    Family(
        format="MTP tensors as in Qwen3-Next",
        mark=re.compile(r"((?:.*\.)?mtp\.)fc\.weight"),
        naming=QWEN,
        feed_normed=True,
    ),
    Family(
        format="MTP tensors as in MiMo",
        mark=re.compile(r"((?:.*\.)?mtp_layers\.\d+\.)input_proj\.weight"),
        naming=MIMO,
        feed_normed=True,
    ),
)


ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")


def holds(source: HeadSource) -> bool:
    return any(prefixes(source, family) for family in FAMILIES)


def prefixes(source: HeadSource, family: Family) -> list[str]:
    """The prefix of each module in the files, the nearest one first."""
    found = [match[1] for match in map(family.mark.fullmatch, source.files.names) if match]
    return sorted(found, key=lambda prefix: [int(number) for number in re.findall(r"\d+", prefix)])


def read(source: HeadSource) -> HeadCheckpoint:
    family = next(family for family in FAMILIES if prefixes(source, family))
    found = prefixes(source, family)
    source.note(len(found) > 1, f"the files hold {len(found)} modules: the first drafts, run again for every token")
    layers = {name for name in source.files.names if name.startswith(f"{found[0]}layers.")}
    deep = [name for name in layers if not name.startswith(f"{found[0]}layers.0.")]
    require(
        not deep,
        f"its module has more than one layer ({sorted(deep)[0] if deep else ''}), which is not read",
        ModelError,
    )
    schema = MtpSchema(
        format=family.format,
        naming=family.naming,
        prefix=found[0],
        layer=layer_values(source),
        feed_normed=family.feed_normed,
    )
    return mtp_head(source, schema)


def layer_values(source: HeadSource) -> dict:
    """The module's layer is like the target's: what its own config does not say is the target's."""
    own = source.config.get("text_config")
    own = source.config | own if isinstance(own, dict) else source.config
    said = {key: value for key, value in own.items() if value is not None}
    turns = any(key in said for key in ROPE_KEYS)  # one spelling of its own outweighs the target's other one
    target = {key: value for key, value in source.target_config.items() if not (turns and key in ROPE_KEYS)}
    return target | said
