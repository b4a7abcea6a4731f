"""Both ways to noise and tokens: torch, and the native extension where it is installed."""

import pytest

from foredraft.sampling import noise


@pytest.fixture(params=["torch", "native"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way the test runs by; a test is skipped for the native one where there is none."""
    if request.param == "torch":
        monkeypatch.setattr(noise, "native", None)
    elif noise.native is None:
        pytest.skip("foredraft_native is not installed or switched off")
    return request.param
