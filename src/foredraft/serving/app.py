"""The application: what a request passes, the routes, and what starts and ends with them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from foredraft import __version__
from foredraft.engine.engine import Engine
from foredraft.serving.errors import install_error_handlers
from foredraft.serving.guards import ApiKeys, BodyLimit, RequestIds
from foredraft.serving.refusals import CountRefusals
from foredraft.serving.routes import chat, completions, health, metrics, models, playground, tokens
from foredraft.serving.server_config import ServerConfig
from foredraft.serving.service import Service

OPEN_PATHS = ("/health", "/playground")  # the page asks for the key itself
ROUTES = (chat, completions, models, tokens, health, metrics)
DESCRIPTION = "OpenAI's API over one model that writes faster by speculation. Errors have OpenAI's form."
NOT_SENT = ("422",)  # FastAPI declares it for every body; here a wrong field is a 400


def create_app(engine: Engine, config: ServerConfig) -> FastAPI:
    """An application over `engine`; nobody else may step it while the application runs."""
    service = Service(engine, config)
    app = App(
        title="foredraft",
        description=DESCRIPTION,
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these two pages load scripts from elsewhere
        redoc_url=None,
    )
    app.state.service = service
    for module in (*ROUTES, *([playground] if config.playground else [])):
        app.include_router(module.router)
    install_error_handlers(app)
    add_guards(app, service)
    return app


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.worker.start()
    yield
    await service.stop()


def add_guards(app: FastAPI, service: Service) -> None:
    """What stands before the routes, the innermost first."""
    config, rejected = service.config, service.metrics.rejected
    app.add_middleware(CountRefusals, reason=service.refusal, rejected=rejected)
    app.add_middleware(BodyLimit, limit=config.limits.max_body_bytes, rejected=rejected)
    if config.keys:
        app.add_middleware(ApiKeys, keys=config.keys, open_paths=OPEN_PATHS, rejected=rejected)
    if config.origins:
        app.add_middleware(CORSMiddleware, allow_origins=config.origins, allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(RequestIds)


class App(FastAPI):
    """FastAPI, its document told without the reply that is never sent."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            for path in document["paths"].values():
                for operation in path.values():
                    for status in NOT_SENT:
                        operation["responses"].pop(status, None)
            for name in ("HTTPValidationError", "ValidationError"):
                document["components"]["schemas"].pop(name, None)
        return self.openapi_schema
