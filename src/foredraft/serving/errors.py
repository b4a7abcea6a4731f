"""What goes wrong while serving, in OpenAI's form: the status, and one line that names the field.

ForedraftError
├── UserError            400; `FieldError` names the request's field
├── BusyError            429, with Retry-After
├── StoppingError        503
└── EngineFailure        503
"""

import logging
from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.core.errors import ConfigError, ForedraftError, UserError
from foredraft.core.fault_log import log_fault
from foredraft.serving.protocol.field_errors import first_problem

logger = logging.getLogger("foredraft.serving")
MAX_MESSAGE = 400  # characters of a message: a client reads a line, not its schema again
INTERNAL = "the server failed at this request; its log says where"
CORE_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


class FieldError(ConfigError):
    """A field of the request cannot be served as it is.

    Attributes:
        param: Path of the field, such as response_format.json_schema.schema.
    """

    def __init__(self, message: str, *, param: str | None):
        super().__init__(message)
        self.param = param


class BusyError(ForedraftError):
    """The queue is full.

    Attributes:
        retry_after: Seconds after which to try again, a whole number.
    """

    def __init__(self, message: str, *, retry_after: int = 1):
        super().__init__(message)
        self.retry_after = retry_after


class StoppingError(ForedraftError):
    """The server is shutting down and takes no new request."""


class EngineFailure(ForedraftError):
    """The engine has stopped working; only a restart helps."""


def openai_error(
    message: str, *, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
) -> dict:
    """The body of an error reply. Text that UTF-8 cannot hold is escaped, a long message is cut."""
    line = encodable(message)
    if len(line) > MAX_MESSAGE:
        half = MAX_MESSAGE // 2
        line = f"{line[:half]} [...] {line[-half:]}"  # what is wrong stands first or last, what was sent between
    param = encodable(param) if param is not None else None
    return {"error": {"message": line, "type": kind, "param": param, "code": code}}


def encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def install_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app` in OpenAI's form. Call it before other middleware is added, to stay inside of it."""
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(UserError, on_user_error)
    app.add_exception_handler(BusyError, on_busy)
    app.add_exception_handler(StoppingError, on_stopping)
    app.add_exception_handler(EngineFailure, on_engine_failure)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(Exception, on_fault)
    app.add_middleware(FaultBarrier)


def reply(status: int, body: dict, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(body, status_code=status, headers=dict(headers or {}))


async def on_invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    problem = first_problem(error.errors(), error.body)
    return reply(400, openai_error(problem.message, param=problem.param))


async def on_user_error(_: Request, error: UserError) -> JSONResponse:
    message, param = str(error), getattr(error, "param", None)
    if not isinstance(error, FieldError):
        for core, ours in CORE_NAMES.items():
            message = message.replace(core, ours)
    return reply(400, openai_error(message, param=param))


async def on_busy(_: Request, error: BusyError) -> JSONResponse:
    body = openai_error(str(error), kind="rate_limit_error", code="queue_full")
    return reply(429, body, {"Retry-After": str(error.retry_after)})


async def on_stopping(_: Request, error: StoppingError) -> JSONResponse:
    return reply(503, openai_error(str(error), kind="server_error", code="shutting_down"))


async def on_engine_failure(_: Request, error: EngineFailure) -> JSONResponse:
    return reply(503, openai_error(str(error), kind="server_error", code="engine_failure"))


async def on_http_exception(_: Request, error: HTTPException) -> JSONResponse:
    """The exception's own status; a `detail` that is an OpenAI body already is sent as it is."""
    ready = isinstance(error.detail, dict) and "error" in error.detail
    return reply(error.status_code, error.detail if ready else status_body(error), error.headers)


def status_body(error: HTTPException) -> dict:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    usual = "server_error" if error.status_code >= 500 else "invalid_request_error"
    return openai_error(str(error.detail), kind=kinds.get(error.status_code, usual))


async def on_fault(_: Request, error: Exception) -> JSONResponse:
    log_fault(logger, "serving a request failed", error)
    return reply(500, openai_error(INTERNAL, kind="server_error", code="internal_error"))


class FaultBarrier:
    """ASGI middleware that ends what no handler has answered as a 500, before a server logs its message.

    A reply that has begun cannot be taken back: the fault goes on without its message, and the connection breaks.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        try:
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            return
        except Exception as error:
            if begun:
                log_fault(logger, "serving a request failed", error)
                raise ForedraftError(f"{type(error).__name__} in the middle of a reply") from None
            response = await on_fault(Request(scope), error)
            await response(scope, receive, send)
