"""`foredraft serve`: an OpenAI-compatible server over one model."""

import os
import signal
from functools import partial
from socket import socket
from typing import Annotated, Any

import torch
from cyclopts import Parameter

from foredraft.cli.flags import flags_of, given
from foredraft.cli.load_options import LoadOptions, load_engine
from foredraft.cli.speculation_flags import SpeculationFlags, speculation_from
from foredraft.core.heap import settle
from foredraft.serving.app import create_app
from foredraft.serving.http_server import HttpServer, bound_socket, url_of
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.server_config import ServerConfig
from foredraft.serving.service import Service

LoadFlags = flags_of(LoadOptions)
ServerFlags = flags_of(ServerConfig, omit=("playground", "limits"))
LimitFlags = flags_of(Limits)
# One core is left for the protocol: where every core computes, each forward waits for the thread that lost its own.
SERVING = {"threads": max(1, torch.get_num_threads() - 1)}
API_KEY_VARIABLE = "FOREDRAFT_API_KEY"
STOPPING = (signal.SIGINT, signal.SIGTERM)  # uvicorn passes them on to the handlers from before it, at its end


def serve(
    *,
    no_playground: Annotated[bool, Parameter(show_default=False)] = False,
    access_log: Annotated[bool, Parameter(show_default=False)] = False,
    speculative_config: str | None = None,
    server: Annotated[ServerFlags, Parameter(name="*", group="Server")] = ServerFlags(),  # noqa: B008
    load: Annotated[LoadFlags, Parameter(name="*", group="Model")] = LoadFlags(),  # noqa: B008
    speculation: Annotated[SpeculationFlags, Parameter(name="*", group="Speculation")] = SpeculationFlags(),  # noqa: B008
    limits: Annotated[LimitFlags, Parameter(name="*", group="Limits of a request")] = LimitFlags(),  # noqa: B008
) -> None:
    """Serve a model over HTTP as OpenAI's API does, until interrupted.

    Args:
        no_playground: Leave out the page at /playground.
        access_log: Write a line for every request: address, path and status, never what was asked.
        speculative_config: The keys of all flags of speculation as one JSON object; flags beside it override it.
    """
    config = server_config(given(server), Limits(**given(limits)), playground=not no_playground)
    with bound_socket(config.host, config.port) as bound:
        options = LoadOptions(**SERVING | given(load))
        engine = load_engine(options, speculation_from(speculative_config, speculation))
        app = create_app(engine, config)
        settle()
        ready = partial(announce, app.state.service, url_of(bound))
        run(HttpServer(app, config, access_log=access_log, ready=ready), bound)


def server_config(values: dict[str, Any], limits: Limits, *, playground: bool) -> ServerConfig:
    """What the flags say; the key comes from the environment where no flag gives one. Raises `ConfigError`."""
    values = {"api_key": os.environ.get(API_KEY_VARIABLE) or None} | values
    return ServerConfig(limits=limits, playground=playground, **values)


def announce(service: Service, url: str) -> None:
    """Say where requests go, what answers them, and where to look."""
    print(f"{service.model_name} at {url}/v1, speculation {service.engine.speculation.method}", flush=True)
    if service.config.playground:
        print(f"a page to try it: {url}/playground", flush=True)


def run(server: HttpServer, bound: socket) -> None:
    """Serve until a signal; one that ended the server gracefully is no failure."""
    before = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    try:
        server.run(sockets=[bound])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
