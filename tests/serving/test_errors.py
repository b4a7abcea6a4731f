"""Errors: each kind has its status, in OpenAI's form, and nothing of a prompt in any log."""

import logging

import httpx
import pytest
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from request_bodies import SECRET

from foredraft.core.errors import ConfigError, ForedraftError, PromptError, SlotsError
from foredraft.serving.errors import (
    INTERNAL,
    BusyError,
    EngineFailure,
    FieldError,
    StoppingError,
    install_error_handlers,
    openai_error,
)
from foredraft.serving.protocol.chat_request import ChatRequest

pytestmark = pytest.mark.anyio


def app_that(raises: Exception) -> FastAPI:
    app = FastAPI()
    install_error_handlers(app)

    @app.post("/chat")
    async def chat(request: ChatRequest):
        return {}

    @app.get("/number")
    async def number(value: int):
        return value

    @app.get("/fails")
    async def fails():
        raise raises

    @app.get("/breaks")
    async def breaks():
        async def chunks():
            yield b"one"
            raise raises

        return StreamingResponse(chunks())

    return app


def client_of(raises: Exception | None = None) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app_that(raises or RuntimeError("unused")))
    return httpx.AsyncClient(transport=transport, base_url="http://server")


async def answered(raises: Exception) -> httpx.Response:
    async with client_of(raises) as client:
        return await client.get("/fails")


def test_the_body_of_an_error():
    body = {"message": "m", "type": "invalid_request_error", "param": "p", "code": "c"}
    assert openai_error("m", param="p", code="c") == {"error": body}


def test_a_long_message_keeps_its_ends_and_a_broken_one_is_escaped():
    message = openai_error("first" + "x" * 10_000 + "last")["error"]["message"]
    assert message.startswith("first") and message.endswith("last") and len(message) < 500
    assert openai_error("\ud800", param="\ud800")["error"]["message"] == "\\ud800"


@pytest.mark.parametrize(
    ("error", "status", "kind", "param", "code"),
    [
        (FieldError("top_p is 2", param="top_p"), 400, "invalid_request_error", "top_p", None),
        (ConfigError("tree_size is 999"), 400, "invalid_request_error", None, None),
        (PromptError("the prompt is empty"), 400, "invalid_request_error", None, None),
        (SlotsError("too long"), 400, "invalid_request_error", None, None),
        (BusyError("1000 requests wait", retry_after=3), 429, "rate_limit_error", None, "queue_full"),
        (StoppingError("shutting down"), 503, "server_error", None, "shutting_down"),
        (EngineFailure("the engine has stopped"), 503, "server_error", None, "engine_failure"),
        (HTTPException(404, "no such model"), 404, "invalid_request_error", None, None),
        (HTTPException(401, "no key"), 401, "authentication_error", None, None),
        (HTTPException(502, "above"), 502, "server_error", None, None),
    ],
)
async def test_each_kind_has_its_status(error, status, kind, param, code):
    response = await answered(error)
    message = error.detail if isinstance(error, HTTPException) else str(error)
    assert response.status_code == status
    assert response.json() == openai_error(message, kind=kind, param=param, code=code)


async def test_a_full_queue_says_when_to_come_again():
    assert (await answered(BusyError("full", retry_after=3))).headers["retry-after"] == "3"


async def test_an_exception_with_a_ready_body_and_headers_keeps_them():
    body = openai_error("no such model", param="model", code="model_not_found")
    response = await answered(HTTPException(404, body, headers={"X-Should-Retry": "false"}))
    assert response.json() == body and response.headers["x-should-retry"] == "false"


async def test_the_core_s_names_become_the_client_s():
    response = await answered(ConfigError("min_new_tokens is 5; it must be at most max_new_tokens, 2"))
    assert response.json()["error"]["message"] == "min_tokens is 5; it must be at most max_tokens, 2"


async def test_a_fault_is_a_500_without_details_and_logged_without_its_message(caplog):
    with caplog.at_level(logging.DEBUG):
        response = await answered(RuntimeError(SECRET))
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": INTERNAL,
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "RuntimeError" in caplog.text and "test_errors.py" in caplog.text and SECRET not in caplog.text


async def test_a_fault_in_the_middle_of_a_reply_breaks_it_without_its_message(caplog):
    with caplog.at_level(logging.DEBUG), pytest.raises(ForedraftError, match="RuntimeError in the middle") as broken:
        async with client_of(RuntimeError(SECRET)) as client:
            await client.get("/breaks")
    assert SECRET not in str(broken.value) and broken.value.__suppress_context__
    assert "RuntimeError" in caplog.text and SECRET not in caplog.text


@pytest.mark.parametrize(
    ("content", "param", "hint"),
    [
        (b"{", None, "not JSON"),
        (b"", None, "JSON object"),
        (b"[]", None, "JSON object"),
        (b"null", None, "JSON object"),
        (b'"text"', None, "JSON object"),
        (b"\xff\xfe", None, ""),
        (b"[" * 100_000, None, ""),
        (b'{"seed": ' + b"9" * 5000 + b"}", None, ""),
        (b"{}", "messages", "messages is missing"),
        (b'{"messages": [{"role": "user", "content": "x"}], "\\ud800": 1}', "\\ud800", "not known"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages.0.content", "surrogate"),
        (b'{"messages": [{"role": "\\ud800", "content": ""}]}', "messages.0.role", "'user'"),
        (b'{"messages": [{"role": "user", "content": [{"type": "\\ud800"}]}]}', "messages.0.content.0.type", "text"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "logit_bias": {"\\ud800": 1}}',
            "logit_bias.\\ud800",
            "token id",
        ),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "tool_choice": "\\ud800"}',
            "tool_choice",
            "whole characters",
        ),
        (b'{"messages": [{"role": "user", "content": "x"}], "store": "\\ud800"}', "store", "not stored"),
        (b'{"messages": [{"role": "user", "content": "x"}], "n": "\\ud800"}', "n", "whole number"),
        (b'{"messages": [{"role": "tool", "content": "", "\\ud800": 1}]}', "messages.0.\\ud800", "not known"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "temperature", "finite"),
    ],
)
async def test_a_body_that_is_wrong_is_a_400_in_openai_s_form(content, param, hint):
    async with client_of() as client:
        response = await client.post("/chat", content=content, headers={"Content-Type": "application/json"})
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["param"], error["type"]) == (param, "invalid_request_error")
    assert hint in error["message"] and "\n" not in error["message"]


async def test_a_body_of_another_type_is_told_what_to_send():
    async with client_of() as client:
        response = await client.post("/chat", content=b"{}", headers={"Content-Type": "text/plain"})
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


async def test_a_wrong_query_is_a_400_too():
    async with client_of() as client:
        wrong, missing = await client.get("/number?value=x"), await client.get("/number")
    assert wrong.status_code == missing.status_code == 400
    assert wrong.json()["error"]["param"] == missing.json()["error"]["param"] == "value"


async def test_paths_and_methods_that_are_not_there_have_openai_s_form():
    async with client_of() as client:
        unknown, wrong = await client.get("/nothing"), await client.put("/chat")
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert unknown.json()["error"]["type"] == wrong.json()["error"]["type"] == "invalid_request_error"
