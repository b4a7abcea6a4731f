"""A way to draft, as the numbers and names that a policy goes by."""

from dataclasses import dataclass

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter
from foredraft.engine.step_costs import DEFAULTS, option_label


@dataclass(frozen=True, slots=True)
class Way:
    """One way to draft.

    Attributes:
        label: Names it among costs.
        kind: Ways of one kind share what is learned of acceptance.
        owner: Names the drafter.
        depth: Longest path it drafts.
        nodes: Most nodes it drafts.
        instant: Whether its draft is looked at before anything is decided.
        stops: Whether its draft ends where the path is not worth another token.
        stepwise: Whether each level of a draft takes another run of its network.
        samples: Whether it may draw what it drafts: what was drawn must not decide how much is.
        independent: Whether it needs nothing that the target makes of the text, so that it drafts from a prompt's end.
    """

    label: str
    kind: str
    owner: str
    depth: int
    nodes: int
    instant: bool = False
    stops: bool = False
    stepwise: bool = False
    samples: bool = False
    independent: bool = False


def way_of(config: SpeculationConfig, drafter: Drafter) -> Way:
    shape = f"{config.speculative_token_tree} {config.tree_size} x {config.tree_width}" if config.branches else "chain"
    owner = f"{config.method} {config.model or ''} {config.drafters}"
    label, kind = option_label(config), f"{owner} {shape}"
    needs = drafter.needs
    stops = needs.trims or (needs.stepwise and not config.branches)
    return Way(
        label,
        kind,
        owner,
        config.depth,
        config.nodes,
        instant=needs.instant,
        stops=stops,
        stepwise=needs.stepwise,
        samples=config.rejection_sample_method != DEFAULTS.rejection_sample_method,
        independent=not (needs.features or needs.successors),
    )
