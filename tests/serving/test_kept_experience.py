"""A server keeps what its policy has learned: in quiet moments, and when it stops."""

import pytest
from worker_doubles import answered, order, serving, until

from foredraft import Engine, SpeculationConfig
from foredraft.model.target import load_target
from foredraft.serving import engine_loop

pytestmark = pytest.mark.anyio


@pytest.mark.usefixtures("steady_costs")
@pytest.mark.parametrize("quiet", [0.01, 60.0])
async def test_what_was_learned_is_on_disk_when_it_is_quiet_and_at_the_end(quiet, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(engine_loop, "QUIET_SECONDS", quiet)
    target = load_target("tiny", dtype="fp32", threads=1, cache_tokens=2048)
    speculation = SpeculationConfig(method="auto", drafters="recycling")
    engine = Engine(target, speculation=speculation, cost_seconds=0.2)
    async with serving(engine) as worker:
        await answered(worker, order([5, 6, 7, 8], tokens=24, ignore_eos=True))
        if quiet < 1:
            await until(lambda: engine.experiences.read().past.tallies)
        else:
            assert not engine.experiences.read().past.tallies
    assert engine.experiences.read().past.tallies
