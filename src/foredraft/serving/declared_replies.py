"""Replies as the OpenAPI document tells of them."""

from typing import Any

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong: one line, its kind, and the field and code where there is one."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorReply(BaseModel):
    """An error as OpenAI writes it."""

    error: ErrorDetail


MEANINGS = {
    400: "A field is wrong or asks for what is not supported; `param` names it.",
    401: "The API key is missing or wrong.",
    404: "There is no such model here.",
    408: "The time this request may take has passed.",
    413: "The body is larger than this server reads.",
    429: "The queue is full; come again after the seconds of the header Retry-After.",
    500: "The engine failed at this request; others go on.",
    503: "The server is shutting down, or the engine has stopped.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The declared error replies of a route."""
    return {status: {"model": ErrorReply, "description": MEANINGS[status]} for status in statuses}


EVENT = {  # one server-sent event; as `schema` of the stream it would be read as that of every event
    "type": "object",
    "required": ["data"],
    "properties": {"data": {"type": "string", "description": "A chunk as JSON, `[DONE]`, or an error."}},
}
ANSWERED = errors(*MEANINGS)  # what a route may answer that hands a body to the engine
STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "OpenAI's object; with `stream` its chunks as server-sent events, the last one `[DONE]`.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"itemSchema": EVENT},
        },
    }
}
