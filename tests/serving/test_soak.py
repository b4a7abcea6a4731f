"""Hundreds of calls, right and wrong, of clients that stay and clients that leave, against one server."""

import pytest
from live_server import served
from soak_doubles import World, require_rest, soaked, told_by
from spelling_target import spelling_engine

from foredraft.engine import kept_ways
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.server_config import ServerConfig

BODY_LIMIT = 20_000
METHODS = ("ngram", "suffix", "recycling", "lookahead", "grammar", "auto")  # the model has no layers to leave out


@pytest.mark.parametrize("slots", [8192, 400], ids=["roomy", "crowded"])
def test_every_call_has_one_answer_and_nothing_is_left(slots):
    engine = spelling_engine(slots=slots)
    config = ServerConfig(limits=Limits(max_body_bytes=BODY_LIMIT))
    with served(engine, config) as live:
        world = World(model=live.model, context=4096, body_limit=BODY_LIMIT, chat=True, methods=METHODS)
        before = told_by(live)
        ledger = soaked(live, world, calls=200, clients=32, seed=slots)
        require_rest(live)
        verdicts = ledger.verdicts(told_by(live).since(before))
    assert not ledger.problems and len(ledger.calls) > 15
    assert [verdict for verdict, holds in verdicts.items() if not holds] == []
    assert len(engine.drafters) <= kept_ways.SPARE_DRAFTERS + len(METHODS)
    for drafter in engine.drafters.values():
        texts = [kept for name in ("texts", "tables", "searches") for kept in getattr(drafter, name, ())]
        assert not texts, "a drafter keeps something of a request that has ended"
