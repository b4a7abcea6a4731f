"""Keeps measured step costs on disk: a model is measured once on a machine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine import kept_record
from foredraft.engine.cost_measuring import measured_costs, measured_drafts
from foredraft.engine.step_costs import StepCosts, option_label
from foredraft.model.target import Target

if TYPE_CHECKING:
    from foredraft.engine.engine import Engine

KIND = "costs"


def ready_costs(engine: "Engine", options: Sequence[SpeculationConfig], *, seconds: float = 3.0) -> StepCosts:
    """Costs of the idle `engine` with each of `options`: read from disk, and measured in `seconds` where missing.

    What was measured is written back. Raises `UserError` kinds where a drafter cannot be made.
    """
    known = stored_costs(engine.target)
    if known is None:
        return renewed_costs(engine, options, seconds=seconds)
    missing = [config for config in options if known.draft_seconds(option_label(config), 1) is None]
    if not missing:
        return known
    costs = replace(known, drafts=known.drafts | measured_drafts(engine, missing, seconds=seconds))
    kept_record.store(KIND, costs.record(), engine.target)
    return costs


def renewed_costs(engine: "Engine", options: Sequence[SpeculationConfig], *, seconds: float) -> StepCosts:
    """Costs measured now, in `seconds`, and written to disk; drafters known there and not in `options` stay known."""
    costs = measured_costs(engine, options, seconds=seconds)
    known = stored_costs(engine.target)
    kept = replace(costs, drafts=known.drafts | costs.drafts) if known else costs
    kept_record.store(KIND, kept.record(), engine.target)
    return kept


def stored_costs(target: Target) -> StepCosts | None:
    """What is on disk for `target`; none where there is nothing, or nothing of ours."""
    try:
        return StepCosts.from_record(kept_record.stored(KIND, target))
    except ValueError:
        return None
