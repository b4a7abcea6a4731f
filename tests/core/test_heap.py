"""The collector leaves out what is loaded, and stops where it must not work."""

import gc
from weakref import ref

import pytest

from foredraft.core.heap import settle, undisturbed


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


@pytest.mark.parametrize("ran", [True, False])
def test_undisturbed_work_has_no_garbage_collected(ran):
    collected: list[str] = []

    def note(phase: str, info: dict) -> None:
        collected.append(phase)

    before, thresholds = gc.isenabled(), gc.get_threshold()
    try:
        gc.set_threshold(1)
        (gc.enable if ran else gc.disable)()
        with pytest.raises(RuntimeError, match="broken"), undisturbed():
            gc.callbacks.append(note)
            loops = [Loop() for _ in range(1000)]
            gc.callbacks.remove(note)
            raise RuntimeError("broken")
        assert len(loops) == 1000 and not collected and gc.isenabled() == ran
    finally:
        gc.set_threshold(*thresholds)
        (gc.enable if before else gc.disable)()
