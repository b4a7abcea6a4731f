"""What is loaded is left out of collections."""

import gc
from weakref import ref

from foredraft.core.heap import settle


class Loop:
    """Garbage that only a collection finds."""

    def __init__(self):
        self.self = self


def test_what_is_there_is_left_out_of_collections_and_garbage_is_gone():
    gone = ref(Loop())
    try:
        settle()
        assert gone() is None and gc.get_freeze_count() > 1000
    finally:
        gc.unfreeze()
