"""Counting the calls that are refused, whoever refuses them."""

from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

Reason = Callable[[int], str | None]


class CountRefusals:
    """ASGI middleware that tells of every refused call; only those that hand something in are counted."""

    def __init__(self, app: ASGIApp, *, reason: Reason, rejected: Callable[[str], None]):
        """`reason` of a status is none where it is no refusal; `rejected` is told the others."""
        self.app, self.reason, self.rejected = app, reason, rejected

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def watched(message: Message) -> None:
            reason = self.reason(message["status"]) if message["type"] == "http.response.start" else None
            if reason is not None:
                self.rejected(reason)
            await send(message)

        await self.app(scope, receive, watched if scope.get("method") == "POST" else send)
