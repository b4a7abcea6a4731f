"""uvicorn as this server runs it: a socket that is bound before the model loads, and an end that finishes what runs."""

import asyncio
import logging
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from foredraft.core.errors import ConfigError
from foredraft.serving.server_config import ServerConfig

KEEP_ALIVE_SECONDS = 30  # longer than clients keep an idle connection, so that none is closed under a request
LAST_WORDS_SECONDS = 5.0  # for what the engine failed at the end of its grace to reach the clients


class HttpServer(uvicorn.Server):
    """Serves one app until it is told to stop.

    Told to stop, it takes no new connection, the engine finishes or fails every request within the grace, and the
    connections close once their answers are out.
    """

    def __init__(self, app: FastAPI, config: ServerConfig, *, access_log: bool = False, ready: Callable[[], None]):
        """`ready` is called once requests are served."""
        self.service, self.ready = app.state.service, ready
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=access_log,
                server_header=False,
                lifespan="on",
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=config.grace_seconds + LAST_WORDS_SECONDS,
            )
        )
        if access_log:
            logging.getLogger("uvicorn.access").setLevel(logging.INFO)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        stopped = asyncio.create_task(self.service.stop())  # beside uvicorn's, which waits for the connections
        await super().shutdown(sockets)
        if self.force_exit:
            await self.service.worker.stop(0)  # interrupted twice: no grace
        await stopped


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not listening yet. Raises `ConfigError` where it is taken or not ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"host {host!r} is no address of this machine: {error.strerror}") from None
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise ConfigError(f"cannot serve at {host} port {port}: {error.strerror}; choose another --port") from None
    return bound


def url_of(bound: socket.socket) -> str:
    """The address of a bound socket as a client writes it."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
