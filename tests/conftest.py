"""For every test: what foredraft keeps between runs lies in a folder of this run alone, and threads wait quietly."""

import os
from tempfile import TemporaryDirectory

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is read, so that processes that tests start see it too."""
    folder = TemporaryDirectory(prefix="foredraft-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["FOREDRAFT_CACHE"] = folder.name
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # several processes share the cores: who waits must not spin
