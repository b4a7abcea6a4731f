"""For every test: what foredraft keeps between runs lies in a folder of this run alone, and threads wait quietly.

For tests of what the policy chooses: costs that no clock decides."""

import os
from tempfile import TemporaryDirectory

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Before any test module is read, so that processes that tests start see it too."""
    folder = TemporaryDirectory(prefix="foredraft-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["FOREDRAFT_CACHE"] = folder.name
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # several processes share the cores: who waits must not spin


@pytest.fixture
def steady_costs(monkeypatch: pytest.MonkeyPatch):
    """`LiveCosts` of every engine that begins in this test, however busy the machine is: a step takes a millisecond
    whatever its rows, a call of a drafter a twentieth of that, and no time seen is learned from."""
    from foredraft.engine import engine  # not before the variables above are set: torch reads them
    from foredraft.engine.policy.live_costs import LiveCosts, OwnTime
    from foredraft.engine.step_costs import ForwardCost, StepCosts

    table = StepCosts(forwards=(ForwardCost(rows=1, requests=1, context=0, seconds=1e-3),), drafts={})
    monkeypatch.setattr(StepCosts, "draft_seconds", lambda *given: 5e-5)
    monkeypatch.setattr(engine, "ready_costs", lambda *given, **named: table)
    for name in ("saw_step", "saw_draft", "saw_reading"):
        monkeypatch.setattr(LiveCosts, name, lambda *given, **named: None)
    monkeypatch.setattr(OwnTime, "saw", lambda *given, **named: None)
    return LiveCosts(table)
