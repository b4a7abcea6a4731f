"""What a request passes before the application sees it: its id, its key, its size. No guard reads or logs a prompt.

Plain ASGI, so that a client's disconnect reaches the handler. From the outside in: `RequestIds`, then whatever answers
cross-origin preflights (they carry no key), then `ApiKeys`, then `BodyLimit`, so that nobody without a key can make the
server read a body.
"""

import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foredraft.core.errors import require
from foredraft.serving.errors import openai_error

PLAIN_ID = re.compile(r"[A-Za-z0-9._:-]{1,64}")
LENGTH = re.compile(r"[0-9]{1,18}")

Rejected = Callable[[str], None]  # told the reason of a refusal


def ignore(_: str) -> None:
    """Count no refusal."""


class RequestIds:
    """Gives every request an id, `request.state.request_id`, and repeats it in the reply as `X-Request-Id`.

    A client's own id is kept when it is short and plain; any other is replaced, so that it can stand in a log.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        asked = Headers(scope=scope).get("x-request-id", "")
        request_id = asked if PLAIN_ID.fullmatch(asked) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        await self.app(scope, receive, named)


def keys_of(text: str | None) -> tuple[str, ...]:
    """The keys of a comma-separated list; none where none is asked for.

    Raises `ConfigError` for a list without a key: it must not open the server.
    """
    keys = tuple(key for part in (text or "").split(",") if (key := part.strip()))
    require(bool(keys) or not text, f"api_key is {text!r}; give a key, or several with commas between them")
    return keys


class ApiKeys:
    """Lets a request pass that carries one of the keys as `Authorization: Bearer`, or whose path is open to everybody.

    How long a comparison takes tells nothing of the keys: digests are compared, all of them, in constant time.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Iterable[str],
        *,
        open_paths: Iterable[str] = ("/health",),
        rejected: Rejected = ignore,
    ):
        """A guard that asks for one of `keys`, everywhere but at and below `open_paths`; `rejected` counts refusals."""
        self.app = app
        self.digests = [digest(key.encode()) for key in keys]
        self.open_paths = tuple(open_paths)
        self.rejected = rejected
        assert self.digests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self.is_open(scope["path"]):
            return await self.app(scope, receive, send)
        authorization = Headers(scope=scope).get("authorization")
        if authorization is not None and self.knows(authorization):
            return await self.app(scope, receive, send)
        self.rejected("unauthorized")
        problem = "needs an API key" if authorization is None else "carries an API key that is not valid here"
        message = f"the request {problem}; send the header 'Authorization: Bearer <key>'"
        body = openai_error(message, kind="authentication_error", code="invalid_api_key")
        await JSONResponse(body, status_code=401, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)

    def is_open(self, path: str) -> bool:
        return any(path == known or path.startswith(f"{known}/") for known in self.open_paths)

    def knows(self, authorization: str) -> bool:
        scheme, _, key = authorization.partition(" ")
        given = digest(key.strip().encode("latin-1"))
        same = [hmac.compare_digest(given, known) for known in self.digests]
        return scheme.lower() == "bearer" and any(same)


def digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BodyLimit:
    """Refuses a body above the limit with 413: at once where its length is announced, else where it is passed.

    A body is read here and handed on in one piece, never longer than the limit, whatever length was announced.
    """

    def __init__(self, app: ASGIApp, limit: int, *, rejected: Rejected = ignore):
        """A guard for bodies of at most `limit` bytes; `rejected` counts refusals."""
        self.app, self.limit, self.rejected = app, limit, rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        first = None if self.announces_more(scope) else await self.read(receive)
        if first is None:
            return await self.refuse(scope, receive, send)
        ready = [first]

        async def replayed() -> Message:
            return ready.pop() if ready else await receive()

        await self.app(scope, replayed, send)

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.rejected("too_large")
        message = f"the request's body is larger than {self.limit} bytes, the most this server reads"
        body = openai_error(message, code="request_too_large")
        await JSONResponse(body, status_code=413)(scope, receive, send)

    def announces_more(self, scope: Scope) -> bool:
        length = Headers(scope=scope).get("content-length", "")
        return LENGTH.fullmatch(length) is not None and int(length) > self.limit

    async def read(self, receive: Receive) -> Message | None:
        """The whole body as one message, or the client's disconnect; none once there is more than the limit."""
        body, more = bytearray(), True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message
            body += message.get("body", b"")
            if len(body) > self.limit:
                return None
            more = message.get("more_body", False)
        return {"type": "http.request", "body": bytes(body), "more_body": False}
