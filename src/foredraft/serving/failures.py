"""Continuations that came to nothing, as the errors their callers get."""

from collections.abc import Iterable

from fastapi import HTTPException

from foredraft.engine.output import RequestOutput
from foredraft.serving.errors import openai_error

NO_RETRY = {"X-Should-Retry": "false"}  # OpenAI's clients would send it again, to the same end
FAILED = (500, "server_error", "request_failed", "the engine failed at this request")
EMPTY = {  # status, kind, code and message by finish reason, where it came before the first token
    "timeout": (408, "timeout_error", "timeout", "the time this request may take passed before anything was written"),
    "shutdown": (503, "server_error", "shutting_down", "the server shut down before anything was written"),
}


def failure_of(output: RequestOutput) -> HTTPException | None:
    """What to answer in place of `output`; none where there is a text, be it cut short."""
    known = {"error": FAILED} | ({} if output.token_ids else EMPTY)
    if output.finish_reason not in known:
        return None
    status, kind, code, message = known[output.finish_reason]
    body = openai_error(output.error or message, kind=kind, code=code)
    return HTTPException(status, detail=body, headers=NO_RETRY)


def require_texts(outputs: Iterable[RequestOutput]) -> None:
    """Raise the `HTTPException` of the first of `outputs` that came to nothing."""
    for output in outputs:
        error = failure_of(output)
        if error is not None:
            raise error
