"""What runs the network of a drafter."""

from foredraft.drafters.dflash import DFlashDrafter
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.drafter import Drafter
from foredraft.drafters.feature_drafter import FeatureDrafter
from foredraft.drafters.foreign_draft_model import ForeignDraftModel
from foredraft.drafters.medusa import MedusaDrafter


def network_path(drafter: Drafter) -> str | None:
    """A line that says which path the forwards of its network take and why; none where it drafts without one."""
    match drafter:
        case FeatureDrafter() | DFlashDrafter():
            return drafter.head.path
        case MedusaDrafter():
            return drafter.heads.path
        case DraftModelDrafter():
            return drafter.model.path
        case ForeignDraftModel():
            return drafter.cache.model.path
    return None
