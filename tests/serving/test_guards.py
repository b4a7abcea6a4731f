"""Ids, keys and sizes at the door, around a small app that answers with what reached it."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from foredraft import ConfigError
from foredraft.serving.guards import ApiKeys, BodyLimit, RequestIds, keys_of

pytestmark = pytest.mark.anyio

SECRET = "the prompt nobody may log"


@pytest.fixture
def anyio_backend():
    return "asyncio"


async def echo(request: Request) -> JSONResponse:
    """How long the body is that reached the application, and under which id."""
    body = await request.body()
    return JSONResponse({"length": len(body), "id": getattr(request.state, "request_id", None)})


inner = Starlette(
    routes=[Route(path, echo, methods=["GET", "POST"]) for path in ("/health", "/playground/page.js", "/v1/chat")]
)


def client(app) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def chunks(*pieces: bytes):
    for piece in pieces:
        yield piece


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        ("", 401),
        ("one", 401),
        ("Bearer", 401),
        ("Bearer ", 401),
        ("Bearer three", 401),
        ("Bearer on", 401),
        ("Bearer one two", 401),
        ("Basic one", 401),
        ("Bearer \xe9", 401),
        ("Bearer one", 200),
        ("bearer two", 200),
        ("Bearer  two ", 200),
    ],
)
async def test_only_a_known_key_opens(header, status):
    refused = []
    headers = [] if header is None else [(b"authorization", header.encode("latin-1"))]
    async with client(ApiKeys(inner, keys_of("one, two"), rejected=refused.append)) as http:
        reply = await http.post("/v1/chat", headers=headers)
    assert reply.status_code == status
    assert refused == ["unauthorized"] * (status == 401)


async def test_a_refusal_for_want_of_a_key_has_openai_form():
    async with client(ApiKeys(inner, ["right"])) as http:
        without, wrong = await http.get("/v1/chat"), await http.get("/v1/chat", headers={"Authorization": "Bearer bad"})
    for reply in (without, wrong):
        assert reply.headers["www-authenticate"] == "Bearer"
        error = reply.json()["error"]
        assert (error["type"], error["param"], error["code"]) == ("authentication_error", None, "invalid_api_key")
        assert "right" not in reply.text and "bad" not in reply.text
    assert "needs an API key" in without.json()["error"]["message"]
    assert "not valid" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health", 200),
        ("/playground/page.js", 200),
        ("/v1/chat", 401),
        ("/healthy", 401),
        ("/v1/health", 401),
        ("/playgrounds", 401),
    ],
)
async def test_open_paths_need_no_key(path, status):
    async with client(ApiKeys(inner, ["key"], open_paths=["/health", "/playground"])) as http:
        assert (await http.get(path)).status_code == status


async def test_an_unauthorized_body_is_not_read():
    read = []

    scope = {"type": "http", "path": "/v1/chat", "headers": []}
    sent = []

    async def receive():
        read.append("a piece")
        return {"type": "http.request", "body": b"piece", "more_body": True}

    async def send(message):
        sent.append(message)

    await ApiKeys(BodyLimit(inner, 100), ["key"])(scope, receive, send)
    assert sent[0]["status"] == 401 and read == []


@pytest.mark.parametrize(
    ("text", "keys"), [(None, ()), ("", ()), ("a", ("a",)), (" a ,b,, c", ("a", "b", "c")), ("a b", ("a b",))]
)
def test_keys_are_read_from_a_list_with_commas(text, keys):
    assert keys_of(text) == keys


@pytest.mark.parametrize("text", [" ", ",", " , "])
def test_a_list_without_a_key_does_not_open_the_server(text):
    with pytest.raises(ConfigError, match="api_key is"):
        keys_of(text)


@pytest.mark.parametrize(("length", "status"), [(0, 200), (99, 200), (100, 200), (101, 413), (5000, 413)])
async def test_a_body_may_be_as_long_as_the_limit(length, status):
    refused = []
    async with client(BodyLimit(inner, 100, rejected=refused.append)) as http:
        announced = await http.post("/v1/chat", content=b"x" * length)
        chunked = await http.post("/v1/chat", content=chunks(*[b"x"] * length))
    assert "content-length" not in chunked.request.headers
    assert (announced.status_code, chunked.status_code) == (status, status)
    assert refused == ["too_large", "too_large"] * (status == 413)
    if status == 200:
        assert announced.json()["length"] == chunked.json()["length"] == length
    else:
        assert announced.json() == chunked.json()
        error = announced.json()["error"]
        assert "100 bytes" in error["message"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")


async def exchange(app, headers: list[tuple[bytes, bytes]], *arriving: dict) -> tuple[list[dict], int]:
    """What `app` sends when these messages arrive, and how many of them it took."""
    sent, left = [], list(arriving)

    async def receive():
        return left.pop(0)

    async def send(message):
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": "/v1/chat", "headers": headers}, receive, send)
    return sent, len(arriving) - len(left)


def piece(body: bytes, more: bool = True) -> dict:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_an_announced_length_above_the_limit_is_refused_before_the_body_arrives():
    for length in (b"101", b"9" * 18):
        sent, taken = await exchange(BodyLimit(inner, 100), [(b"content-length", length)], piece(b"x"))
        assert sent[0]["status"] == 413 and taken == 0


async def test_a_chunked_body_is_refused_where_it_passes_the_limit():
    sent, taken = await exchange(BodyLimit(inner, 100), [], *[piece(b"x" * 40)] * 10)
    assert sent[0]["status"] == 413 and taken == 3


@pytest.mark.parametrize("announced", [b"5", b"-1", b"abc", b"9" * 5000])
async def test_a_false_length_lets_nothing_through(announced):
    sent, taken = await exchange(BodyLimit(inner, 100), [(b"content-length", announced)], *[piece(b"x" * 60)] * 9)
    assert sent[0]["status"] == 413 and taken == 2


async def test_a_disconnect_reaches_the_application_before_and_after_the_body():
    seen = []

    async def app(scope, receive, send):
        seen.append([(await receive())["type"] for _ in range(2)])

    gone = {"type": "http.disconnect"}
    await exchange(BodyLimit(app, 100), [], piece(b"a"), piece(b"b", more=False), gone)
    await exchange(BodyLimit(app, 100), [], piece(b"a"), gone, gone)
    assert seen == [["http.request", "http.disconnect"], ["http.disconnect", "http.disconnect"]]


@pytest.mark.parametrize("asked", ["a", "7f-3_b.c:d", "x" * 64])
async def test_a_plain_id_is_kept(asked):
    async with client(RequestIds(inner)) as http:
        reply = await http.get("/health", headers={"X-Request-Id": asked})
    assert reply.headers["x-request-id"] == reply.json()["id"] == asked


@pytest.mark.parametrize("asked", [None, "", "two words", "x" * 65, "line\nbreak", "a\n", "é", "<script>"])
async def test_another_id_is_replaced(asked):
    headers = [] if asked is None else [(b"x-request-id", asked.encode())]
    async with client(RequestIds(inner)) as http:
        replies = [await http.get("/health", headers=headers) for _ in range(2)]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == 2 and asked not in ids
    assert all(reply.json()["id"] == reply.headers["x-request-id"] for reply in replies)


async def test_every_refusal_carries_the_id():
    app = RequestIds(ApiKeys(BodyLimit(inner, 10), ["key"]))
    async with client(app) as http:
        replies = [
            await http.post("/v1/chat", headers={"X-Request-Id": "mine"}),
            await http.post(
                "/v1/chat", headers={"X-Request-Id": "mine", "Authorization": "Bearer key"}, content="x" * 11
            ),
        ]
    assert [reply.status_code for reply in replies] == [401, 413]
    assert all(reply.headers["x-request-id"] == "mine" for reply in replies)


async def test_guards_let_the_lifespan_pass():
    kinds = []

    async def app(scope, receive, send):
        kinds.append(scope["type"])

    for guard in (RequestIds(app), ApiKeys(app, ["key"]), BodyLimit(app, 1)):
        await guard({"type": "lifespan"}, None, None)
    assert kinds == ["lifespan"] * 3


async def test_prompts_and_keys_stay_out_of_the_log(caplog):
    caplog.set_level("DEBUG")
    app = RequestIds(ApiKeys(BodyLimit(inner, 10), ["key"]))
    async with client(app) as http:
        for key in ("wrong-key", "key"):
            await http.post("/v1/chat", headers={"Authorization": f"Bearer {key}"}, content=SECRET)
    ours = "".join(record.getMessage() for record in caplog.records)
    assert SECRET not in ours and "wrong-key" not in ours
