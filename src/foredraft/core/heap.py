"""Keeps the garbage collector from work at the wrong time."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


def settle() -> None:
    """Free what is garbage now, and leave all that is loaded out of later collections.

    With torch and transformers loaded a full collection goes through some hundred thousand objects, and everybody
    waits a tenth of a second or two for it, ever so often. For a whole process: `gc.unfreeze` takes it back.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Nothing is collected meanwhile, in any thread, unless somebody asks for it."""
    ran = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if ran:
            gc.enable()
