"""Ways to draft that requests have asked for, kept for those that ask again; there are more than memory can hold."""

from collections.abc import Iterable

from foredraft.core.recent import Recent
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter
from foredraft.engine.running import Option

KEPT_OPTIONS = 256  # configs whose options are remembered
SPARE_DRAFTERS = 32  # drafters that nobody uses

Options = tuple[Option, ...]
KnownOptions = Recent[tuple[SpeculationConfig, bool], Options]
Drafters = dict[SpeculationConfig, Drafter]


def forget_spare(drafters: Drafters, known: KnownOptions, used: Iterable[Options]) -> None:
    """Let the drafters go that were asked for longest ago, beyond `SPARE_DRAFTERS` of those in no option of `used`.

    What such a drafter has learned of past texts goes with it. Options that name it are forgotten too: who asks for
    them again gets another one.
    """
    if len(drafters) <= SPARE_DRAFTERS:
        return
    needed = {id(option.drafter) for options in used for option in options}
    asked = {id(option.drafter): place for place, options in enumerate(known.values()) for option in options}
    spare = [key for key, drafter in drafters.items() if id(drafter) not in needed]
    spare.sort(key=lambda key: asked.get(id(drafters[key]), -1))
    gone = {id(drafters.pop(key)) for key in spare[: max(0, len(spare) - SPARE_DRAFTERS)]}
    for key, options in list(known.items()):
        if any(id(option.drafter) in gone for option in options):
            del known[key]
