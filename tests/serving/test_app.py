"""What surrounds the replies: models, health, keys, origins, unknown paths, the document, the end."""

import json
import socket
from contextlib import ExitStack
from threading import Thread
from time import sleep

import httpx
import pytest
from httpx import ASGITransport, AsyncClient
from live_server import served
from spelling_target import spelling_engine

from foredraft.core.errors import ConfigError
from foredraft.engine.engine import Engine
from foredraft.serving.app import create_app, lifespan
from foredraft.serving.http_server import bound_socket, url_of
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.server_config import ServerConfig

POSTS = ("/v1/chat/completions", "/v1/completions")


def chat_body(said: str, **fields) -> dict:
    return {"model": "scripted", "messages": [{"role": "user", "content": f"say {said}"}], "temperature": 0} | fields


ENDLESS = chat_body("dice", max_tokens=3500, temperature=1)


def dumped(body: dict) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"))


def error_of(response: httpx.Response) -> dict:
    body = response.json()
    assert body.keys() == {"error"} and body["error"].keys() == {"message", "type", "param", "code"}
    return body["error"]


def test_the_model_is_listed_and_described(spelling):
    listed = httpx.get(f"{spelling.url}/v1/models").json()
    (card,) = listed["data"]
    assert (listed["object"], card["object"], card["id"], card["max_model_len"]) == ("list", "model", "scripted", 4096)
    assert httpx.get(f"{spelling.url}/v1/models/scripted").json() == card


def test_another_model_is_not_found(spelling):
    alone = httpx.get(f"{spelling.url}/v1/models/gpt-4")
    asked = [httpx.post(spelling.url + POSTS[0], json=chat_body("x", model="gpt-4"))]
    asked += [httpx.post(spelling.url + POSTS[1], json={"model": "gpt-4", "prompt": "x"})]
    for response in (alone, *asked):
        assert response.status_code == 404
        error = error_of(response)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "gpt-4" in error["message"] and "scripted" in error["message"]


def test_health_and_version(spelling):
    health = httpx.get(f"{spelling.url}/health")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})
    assert httpx.get(f"{spelling.url}/version").json().keys() == {"version"}


def test_unknown_paths_and_wrong_methods_have_openais_form(spelling):
    unknown, wrong = httpx.get(f"{spelling.url}/v1/embeddings"), httpx.get(spelling.url + POSTS[0])
    assert (unknown.status_code, wrong.status_code) == (404, 405)
    assert error_of(unknown) and error_of(wrong)


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
def test_pages_that_load_scripts_from_elsewhere_are_off(spelling, path):
    assert httpx.get(spelling.url + path).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"model": "scripted"}', "messages"),
        (b'{"model": "scripted", "messages": [], "max_tokenz": 3}', "max_tokenz"),
        (b'{"model": "scripted", "messages": [{"role": "user", "content": "x"}], "top_p": 2}', None),
    ],
)
def test_wrong_bodies_are_a_400_that_names_the_field(spelling, body, param):
    response = httpx.post(spelling.url + POSTS[0], content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    error = error_of(response)
    assert error["type"] == "invalid_request_error" and (param is None or error["param"] == param)


def test_the_document_declares_errors_in_openais_form_and_no_422(spelling):
    document = httpx.get(f"{spelling.url}/openapi.json").json()
    assert document["info"]["title"] == "foredraft"
    for path in POSTS:
        replies = document["paths"][path]["post"]["responses"]
        assert replies.keys() == {"200", "400", "401", "404", "408", "413", "429", "500", "503"}
        assert replies["200"]["content"].keys() == {"application/json", "text/event-stream"}
        for status, reply in replies.items():
            if status != "200":
                assert reply["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorReply")
    assert "422" not in str(document) and "ValidationError" not in document["components"]["schemas"]


def test_a_key_opens_everything_but_health_is_open(spelling):
    config = ServerConfig(api_key="secret")
    with served(spelling_engine(), config) as live:
        assert httpx.get(f"{live.url}/health").status_code == 200
        for path in ("/v1/models", "/metrics", "/openapi.json"):
            assert httpx.get(live.url + path).status_code == 401
            assert httpx.get(live.url + path, headers={"Authorization": "Bearer wrong"}).status_code == 401
            assert httpx.get(live.url + path, headers={"Authorization": "Bearer secret"}).status_code == 200


def test_a_body_over_the_limit_is_refused(spelling):
    with served(spelling_engine(), ServerConfig(limits=Limits(max_body_bytes=200))) as live:
        response = httpx.post(live.url + POSTS[0], json=chat_body("x" * 500))
        assert response.status_code == 413 and error_of(response)
        assert httpx.post(live.url + POSTS[0], json=chat_body("x")).status_code == 200


def test_no_origin_is_let_in_unless_it_is_named(spelling):
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(f"{spelling.url}/v1/models", headers=asked).headers
    config = ServerConfig(cors_origins="https://example.org, http://localhost:3000", api_key="secret")
    with served(spelling_engine(), config) as live:
        preflight = httpx.options(f"{live.url}/v1/models", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == "https://example.org"
        other = httpx.get(f"{live.url}/health", headers={"Origin": "https://example.com"})
        assert "access-control-allow-origin" not in other.headers


def test_the_playground_can_be_left_out(spelling):
    assert httpx.get(f"{spelling.url}/playground").status_code == 200
    with served(spelling_engine(), ServerConfig(playground=False)) as live:
        assert httpx.get(f"{live.url}/playground").status_code == 404


def test_a_full_queue_is_a_429_that_says_when_to_come_again():
    with served(spelling_engine(max_batch=1), ServerConfig(max_waiting=1)) as live, ExitStack() as open_streams:
        for _ in range(2):
            open_streams.enter_context(httpx.stream("POST", live.url + POSTS[0], json=ENDLESS | {"stream": True}))
        response = httpx.post(live.url + POSTS[0], json=chat_body("x"))
        assert response.status_code == 429 and int(response.headers["Retry-After"]) >= 1
        assert error_of(response)["type"] == "rate_limit_error"
        open_streams.close()
        wait_until(lambda: live.service.engine.scheduler.idle)
        assert httpx.post(live.url + POSTS[0], json=chat_body("x")).status_code == 200
        counted = httpx.get(f"{live.url}/metrics").text
    assert 'foredraft_rejected_requests_total{model_name="scripted",reason="busy"} 1.0' in counted


def test_a_request_that_takes_too_long_is_cut_short(spelling):
    (choice,) = httpx.post(spelling.url + POSTS[0], json=ENDLESS | {"timeout": 0.2}, timeout=60).json()["choices"]
    assert (choice["finish_reason"], choice["foredraft"]) == ("length", {"ended": "timeout"})


def test_a_request_whose_time_is_over_before_it_begins_is_a_408():
    with ExitStack() as stack:
        live = stack.enter_context(served(spelling_engine(max_batch=1)))
        stack.enter_context(httpx.stream("POST", live.url + POSTS[0], json=ENDLESS | {"stream": True}))
        response = httpx.post(live.url + POSTS[0], json=chat_body("x", timeout=0.01))
        streamed = httpx.post(live.url + POSTS[0], json=chat_body("x", timeout=0.01, stream=True))
    assert response.status_code == 408 and error_of(response)["code"] == "timeout"
    assert response.headers["X-Should-Retry"] == "false"
    assert streamed.text == f"data: {dumped(response.json())}\n\n"


def test_the_end_finishes_what_runs_and_refuses_what_comes():
    engine = spelling_engine()
    with served(engine) as live:
        engine.target.open.clear()
        replies: list[httpx.Response] = []
        asking = Thread(target=lambda: replies.append(httpx.post(live.url + POSTS[0], json=chat_body("bye"))))
        asking.start()
        wait_until(lambda: live.service.worker.snapshot().running == 1)
        with httpx.Client(base_url=live.url) as kept:
            assert kept.get("/health").status_code == 200
        live.server.should_exit = True
        wait_until(lambda: live.service.stopping is not None)
        engine.target.open.set()
        asking.join(10)
        assert replies[0].json()["choices"][0]["message"]["content"] == "bye"
        live.thread.join(10)
        assert not live.thread.is_alive() and slots_in_use(engine) == 0


def test_the_end_cuts_short_what_the_grace_does_not_suffice_for():
    engine = spelling_engine()
    with served(engine, ServerConfig(grace_seconds=0.1)) as live:
        replies: list[httpx.Response] = []
        asking = Thread(target=lambda: replies.append(httpx.post(live.url + POSTS[0], json=ENDLESS, timeout=60)))
        asking.start()
        wait_until(lambda: live.service.worker.snapshot().running == 1)
        live.stop()
        asking.join(10)
    (choice,) = replies[0].json()["choices"]
    assert (choice["finish_reason"], choice["foredraft"]) == ("length", {"ended": "shutdown"})


def test_a_second_interrupt_leaves_no_grace():
    engine = spelling_engine()
    with served(engine, ServerConfig(grace_seconds=600)) as live, httpx.Client() as client:
        with client.stream("POST", live.url + POSTS[0], json=ENDLESS | {"n": 8, "stream": True}) as response:
            lines = response.iter_lines()  # named, because httpx hangs up when the iterator is collected
            next(lines)
            live.server.should_exit = True
            wait_until(lambda: live.service.stopping is not None)
            live.server.force_exit = True
            live.thread.join(20)
        assert not live.thread.is_alive() and slots_in_use(engine) == 0


@pytest.mark.anyio
async def test_while_it_stops_it_is_not_healthy_and_takes_nothing():
    app = create_app(spelling_engine(), ServerConfig())
    async with lifespan(app), AsyncClient(transport=ASGITransport(app), base_url="http://test") as client:
        assert (await client.get("/health")).status_code == 200
        await app.state.service.stop()
        health, refused = await client.get("/health"), await client.post(POSTS[0], json=chat_body("x"))
    assert (health.status_code, health.json()["reason"]) == (503, "the server is shutting down")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "shutting_down")


def test_a_dead_engine_is_not_healthy_and_takes_nothing(monkeypatch):
    engine = spelling_engine()
    monkeypatch.setattr(engine, "step", broken)
    with served(engine) as live:
        failed = [httpx.post(live.url + POSTS[0], json=chat_body("x")) for _ in range(3)]
        assert {response.status_code for response in failed} <= {500, 503}
        health, refused = httpx.get(f"{live.url}/health"), httpx.post(live.url + POSTS[0], json=chat_body("x"))
    assert (health.status_code, health.json()["reason"]) == (503, "the engine has stopped")
    assert (refused.status_code, error_of(refused)["code"]) == (503, "engine_failure")


def broken():
    raise RuntimeError("the machine is on fire")


def slots_in_use(engine: Engine) -> int:
    """Cache slots that belong to requests, not to kept prefixes."""
    pool = engine.target.pool
    return pool.size - pool.free - engine.prefix_cache.cached_tokens


def wait_until(holds, seconds: float = 20.0) -> None:
    for _ in range(int(seconds * 100)):
        if holds():
            return
        sleep(0.01)
    raise AssertionError("it did not come to be")


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="choose another --port"):
        bound_socket("127.0.0.1", taken.getsockname()[1])


def test_a_host_that_is_not_here_is_refused():
    with pytest.raises(ConfigError, match="203.0.113.1"):
        bound_socket("203.0.113.1", 0)
    with pytest.raises(ConfigError, match="no-such-host.invalid"):
        bound_socket("no-such-host.invalid", 0)


def test_an_address_is_written_as_clients_write_it():
    with bound_socket("127.0.0.1", 0) as bound:
        assert url_of(bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"port": 65_536}, "port"),
        ({"host": ""}, "host"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": ","}, "api_key"),
        ({"served_model_name": ""}, "served_model_name"),
        ({"cors_origins": "example.org"}, "cors_origins"),
        ({"cors_origins": "https://example.org/path"}, "cors_origins"),
        ({"max_waiting": 0}, "max_waiting"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"grace_seconds": -1}, "grace_seconds"),
    ],
)
def test_wrong_configurations_are_refused_by_name(values, named):
    with pytest.raises(ConfigError, match=named):
        ServerConfig(**values)
