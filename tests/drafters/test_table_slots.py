"""Slots of a text's first positions, as a slice wherever they are one run."""

import pytest
import torch

from foredraft.drafters.table_slots import continued, first_slots, last_and_before
from foredraft.model.slot_pool import SlotTable

CPU = torch.device("cpu")
RUN = SlotTable(slots=[4, 5, 6], tail=[7, 8, 20])
MOVED = SlotTable(slots=[4, 5, 6], tail=[9, 10])
BROKEN = SlotTable(slots=[4, 9, 6], tail=[7], run=False)
FRESH = SlotTable(tail=[3, 4])


@pytest.mark.parametrize(
    ("table", "count", "wanted"),
    [
        (RUN, 0, slice(4, 4)),
        (RUN, 2, slice(4, 6)),
        (RUN, 3, slice(4, 7)),
        (RUN, 5, slice(4, 9)),
        (RUN, 6, [4, 5, 6, 7, 8, 20]),
        (MOVED, 3, slice(4, 7)),
        (MOVED, 4, [4, 5, 6, 9]),
        (BROKEN, 0, slice(0, 0)),
        (BROKEN, 1, slice(4, 5)),
        (BROKEN, 4, [4, 9, 6, 7]),
        (FRESH, 2, slice(3, 5)),
    ],
)
def test_first_slots(table, count, wanted):
    slots = first_slots(table, count, CPU)
    if isinstance(wanted, slice):
        assert slots == wanted
    else:
        assert slots.tolist() == wanted


def test_slots_are_continued():
    assert continued(slice(4, 7), [], CPU) == slice(4, 7)
    assert continued(slice(4, 7), [7, 8], CPU) == slice(4, 9)
    assert continued(slice(4, 7), [8], CPU).tolist() == [4, 5, 6, 8]
    assert continued(torch.tensor([4, 9]), [10], CPU).tolist() == [4, 9, 10]


def test_the_last_slot_and_the_others():
    assert last_and_before(slice(4, 7)) == (6, slice(4, 6))
    last, before = last_and_before(torch.tensor([4, 9, 2]))
    assert last == 2 and before.tolist() == [4, 9]
