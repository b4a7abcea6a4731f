"""The extension that the other tests of this folder try is one that foredraft takes."""

import foredraft_native

from foredraft.model.native_runtime import INTERFACE, absence


def test_the_built_extension_fits():
    assert foredraft_native.INTERFACE == INTERFACE and absence() == ""
