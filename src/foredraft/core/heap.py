"""Keeps the garbage collector from holding up a process that has loaded its model."""

import gc


def settle() -> None:
    """Free what is garbage now, and leave all that is loaded out of later collections.

    With torch and transformers loaded a full collection goes through some hundred thousand objects, and everybody
    waits a tenth of a second or two for it, ever so often. For a whole process: `gc.unfreeze` takes it back.
    """
    gc.collect()
    gc.freeze()
