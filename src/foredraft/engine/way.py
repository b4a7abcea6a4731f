"""A way to draft, as the numbers and names that a policy goes by."""

from dataclasses import dataclass

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter
from foredraft.engine.step_costs import option_label


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
    """

    label: str
    kind: str
    owner: str
    depth: int
    nodes: int
    instant: bool = False
    stops: bool = False


def way_of(config: SpeculationConfig, drafter: Drafter) -> Way:
    shape = f"{config.speculative_token_tree} {config.tree_size} x {config.tree_width}" if config.branches else "chain"
    owner = f"{config.method} {config.model or ''} {config.drafters}"
    label, kind = option_label(config), f"{owner} {shape}"
    needs = drafter.needs
    stops = needs.trims or (needs.stepwise and not config.branches)
    return Way(label, kind, owner, config.depth, config.nodes, instant=needs.instant, stops=stops)
