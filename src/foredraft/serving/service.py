"""What every route shares: the engine, its worker, and who may ask for what."""

import asyncio
from collections.abc import Callable
from time import time
from typing import TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import HTTPException, Request

from foredraft.engine.engine import Engine
from foredraft.serving.errors import StoppingError, openai_error
from foredraft.serving.generation import Generation, Order
from foredraft.serving.metrics import Metrics
from foredraft.serving.server_config import ServerConfig
from foredraft.serving.worker import EngineWorker

REFUSALS = {400: "invalid", 404: "invalid", 405: "invalid", 429: "busy"}
PREPARING_THREADS = 4  # they share one interpreter with the engine's thread
Result = TypeVar("Result")


class Service:
    """One engine being served.

    Attributes:
        engine, worker: Only the worker steps the engine.
        config, limits: What the server was started with.
        metrics: What `/metrics` tells.
        model_name: What requests call the model.
        created: When it was started, in Unix seconds.
        stopping: The task that ends it, once it has begun.
    """

    def __init__(self, engine: Engine, config: ServerConfig):
        self.engine, self.config, self.limits = engine, config, config.limits
        self.model_name = config.served_model_name or engine.target.name
        self.metrics = Metrics(engine, model_name=self.model_name)
        self.worker = EngineWorker(engine, max_waiting=config.max_waiting, observers=[self.metrics])
        self.created = int(time())
        self.stopping: asyncio.Task[None] | None = None
        self.preparing = CapacityLimiter(PREPARING_THREADS)

    async def prepare(self, call: Callable[..., Result], *arguments: object) -> Result:
        """`call` in another thread: reading schemas and making tokens of a long prompt take their time."""
        return await to_thread.run_sync(call, *arguments, limiter=self.preparing)

    async def submit(self, order: Order) -> Generation:
        """Hand `order` to the engine. Raises `UserError` kinds, `BusyError`, `StoppingError` or `EngineFailure`."""
        if self.stopping is not None:
            raise StoppingError("the server is shutting down")
        return await self.worker.submit(order)

    async def stop(self) -> None:
        """Take no new request, finish or fail the others; may be called several times."""
        if self.stopping is None:
            self.stopping = asyncio.create_task(self.worker.stop(self.config.grace_seconds))
        await asyncio.shield(self.stopping)

    def trouble(self) -> str | None:
        """Why no request can be served; none where they can."""
        if self.stopping is not None:
            return "the server is shutting down"
        return None if self.worker.snapshot().alive else "the engine has stopped"

    def timeout(self, asked: float | None) -> float:
        """Seconds that a request may take."""
        longest = self.config.timeout_seconds
        return longest if asked is None else min(asked, longest)

    def refusal(self, status: int) -> str | None:
        """Why a call was answered with this status, as the metrics name it; none where it was not refused."""
        if status == 503:
            return "engine" if self.stopping is None else "stopping"
        return REFUSALS.get(status)

    def require_model(self, name: str | None) -> None:
        """Raise a 404 for a name that requests do not call the model by; without a name it is meant."""
        if name is not None and name != self.model_name:
            message = f"model {name!r} is not served here; this server has {self.model_name!r}"
            raise HTTPException(404, detail=openai_error(message, param="model", code="model_not_found"))


def service_of(request: Request) -> Service:
    """The service of the app that `request` came to; for routes, as a dependency."""
    return request.app.state.service
