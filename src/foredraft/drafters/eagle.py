"""EAGLE-1, EAGLE-2 and EAGLE-3: drafts by a head that continues the target's features.

Chains, and EAGLE-2's dynamic trees, which need no other head: expand the best few nodes of each level by cumulative
log-probability, keep the best of all.
"""

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import register
from foredraft.drafters.feature_drafter import FeatureDrafter, feature_drafter, plain_shapes
from foredraft.drafters.learned import load_head
from foredraft.model.target import ModelTarget


@register("eagle")
@register("eagle3")
def make_eagle(config: SpeculationConfig, target: ModelTarget) -> FeatureDrafter:
    """A drafter over the head `config.model` names. Raises `ConfigError` or `ModelError`."""
    found, head = load_head(config, target)
    sizes = found.config.sizes
    return feature_drafter(config, target, head, sizes, shapes=plain_shapes(sizes, layers=found.config.layers))
