"""What foredraft makes of a drafter's head, as plain values."""

from dataclasses import asdict, dataclass

from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_checkpoint import EMBEDDED_HEADS, find_head, holds_head
from foredraft.core.errors import UserError
from foredraft.model.loading import embedded_folder
from foredraft.model.target import ModelTarget


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadReport:
    """One head, read for one target.

    Attributes:
        name: As given.
        method: The drafter that runs it, none where it cannot be read.
        format: Of its files.
        facts: The config of its network.
        notes: What was decided while reading.
        problem: Why it cannot be read or does not fit, none where it does.
    """

    name: str
    method: str | None = None
    format: str | None = None
    facts: dict
    notes: list[str]
    problem: str | None = None


def head_report(name: str | None, target: ModelTarget, *, method: str | None = None) -> HeadReport | None:
    """Describe the head `name`, without one that in the target's own checkpoint; none where there is no head."""
    place = {"target": target.model.capability, "target_path": target.path}
    if not holds_head(name, **place):
        return None
    try:
        return described(find_head(name, method=method, **place))
    except UserError as error:
        return HeadReport(name=name or target.name, facts={}, notes=[], problem=str(error))


def described(head: HeadCheckpoint) -> HeadReport:
    facts = asdict(head.config)
    sizes = facts.pop("sizes", {})
    return HeadReport(
        name=head.name, method=head.method, format=head.format, facts=sizes | facts, notes=list(head.notes)
    )


def own_heads(target: ModelTarget) -> dict[str, str]:
    """Heads made for `target` that need no looking for, by name, each with its method and format."""
    inside = head_report(None, target, method="mtp") if target.path else None
    own = {} if inside is None else {"its checkpoint": inside.problem or f"{inside.method}, {inside.format}"}
    embedded = [name for name, (made_for, _) in EMBEDDED_HEADS.items() if made_for == target.name]
    there = [name for name in embedded if embedded_folder(name).is_dir()]
    return own | {name: f"{EMBEDDED_HEADS[name][1]}, embedded" for name in there}
