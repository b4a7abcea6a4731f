"""Servers for tests: over a model that says what it is told to, and over the embedded one."""

from collections.abc import Iterator

import pytest
from live_server import Live, served
from openai import OpenAI
from spelling_target import SpellingTarget, spelling_engine

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def spelling() -> Iterator[Live]:
    """A server whose model says what it is told to."""
    with served(spelling_engine()) as live:
        yield live


@pytest.fixture
def held(spelling) -> Iterator[SpellingTarget]:
    """Its model, in which no forward ends until `open` is set; it is, after the test."""
    target = spelling.service.engine.target
    target.open.clear()
    yield target
    target.open.set()


@pytest.fixture(scope="session")
def tiny_engine() -> Engine:
    """The embedded model in fp32, as one server uses it: a test that steps it itself makes a second one."""
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, speculation=SpeculationConfig(method="suffix"))


@pytest.fixture(scope="session")
def tiny(tiny_engine) -> Iterator[Live]:
    """A server over the embedded model."""
    with served(tiny_engine) as live:
        yield live


@pytest.fixture
def client(spelling) -> Iterator[OpenAI]:
    with spelling.client() as client:
        yield client
