"""Cache slots of a text's first positions, found without reading the whole table where they are one run."""

import torch
from torch import Tensor

from foredraft.core.slots import Slots, compact, indices, integers
from foredraft.model.slot_pool import SlotTable


def first_slots(table: SlotTable, count: int, device: torch.device) -> Slots:
    """Slots of the first `count` positions, those that the step has taken for pending tokens included."""
    own, more = table.slots, max(0, count - len(table.slots))
    first = own[0] if own else table.tail[0] if table.tail else 0
    if table.run and table.tail[:more] == list(range(first + len(own), first + count)):
        return slice(first, first + count)
    return compact((own + table.tail)[:count], device) if count else slice(0, 0)


def continued(slots: Slots, more: list[int], device: torch.device) -> Slots:
    """`slots` with `more` behind them."""
    if not more:
        return slots
    if isinstance(slots, slice) and more == list(range(slots.stop, slots.stop + len(more))):
        return slice(slots.start, slots.stop + len(more))
    return torch.cat([indices(slots, device), integers(more, device)])


def last_and_before(slots: Slots) -> tuple[int, Slots]:
    """The last of `slots`, and the others."""
    if isinstance(slots, Tensor):
        return int(slots[-1]), slots[:-1]
    return slots.stop - 1, slice(slots.start, slots.stop - 1)
