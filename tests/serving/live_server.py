"""A server in a thread on a free port, as a client sees it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread

from openai import OpenAI

from foredraft.engine.engine import Engine
from foredraft.serving.app import create_app
from foredraft.serving.http_server import HttpServer, bound_socket, url_of
from foredraft.serving.server_config import ServerConfig
from foredraft.serving.service import Service


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """A running server.

    Attributes:
        url: Its address, without /v1.
        server, service: Its insides.
        thread: Where it runs.
    """

    url: str
    server: HttpServer
    service: Service
    thread: Thread

    @property
    def model(self) -> str:
        return self.service.model_name

    def client(self, key: str = "none") -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(30)
        assert not self.thread.is_alive()


@contextmanager
def served(engine: Engine, config: ServerConfig | None = None) -> Iterator[Live]:
    """Serve `engine` while the context lasts."""
    config = config or ServerConfig()
    app, ready = create_app(engine, config), Event()
    with bound_socket(config.host, 0) as bound:
        server = HttpServer(app, config, ready=ready.set)
        thread = Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
        live = Live(url=url_of(bound), server=server, service=app.state.service, thread=thread)
        thread.start()
        assert ready.wait(60)
        try:
            yield live
        finally:
            live.stop()
