"""The command `serve`: what it says, what it refuses, and how it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from foredraft.cli import serve as serve_command
from foredraft.serving.http_server import HttpServer

ENVIRONMENT = os.environ | {"PYTHONPATH": "src"}
PLAIN = ("--dtype", "fp32", "--drafter", "ngram", "--port", "0")


@pytest.fixture
def started(monkeypatch) -> list[HttpServer]:
    """The servers that the command would have run."""
    servers: list[HttpServer] = []

    def run(server: HttpServer, bound: socket.socket) -> None:
        servers.append(server)
        server.ready()

    monkeypatch.setattr(serve_command, "run", run)
    return servers


@contextmanager
def process(model: str, *flags: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """The command in a process of its own, and its address."""
    command = [sys.executable, "-m", "foredraft", "serve", "--model", model, *PLAIN, *flags]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        yield running, re.search(r"http://\S+?(?=/v1)", running.stdout.readline())[0]
    finally:
        running.kill()
        running.communicate()


def test_it_says_where_what_and_how(run, model, started):
    code, out, err = run("serve", "--model", model, *PLAIN)
    assert (code, err) == (0, "")
    served, page = out.splitlines()
    assert model in served and "speculation ngram" in served and "http://127.0.0.1:" in served
    assert page.endswith("/playground")


def test_the_flags_reach_the_server(run, model, started, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_API_KEY", "from the environment")
    flags = ["--max-waiting", 7, "--timeout-seconds", 9, "--grace-seconds", 2, "--served-model-name", "m", "--max-n", 3]
    _, out, _ = run("serve", "--model", model, *PLAIN, *flags, "--no-playground", "--cors-origins", "http://a.b")
    (server,) = started
    config = server.service.config
    assert (config.max_waiting, config.timeout_seconds, config.grace_seconds) == (7, 9.0, 2.0)
    assert (config.limits.max_n, config.origins, config.keys) == (3, ["http://a.b"], ("from the environment",))
    assert server.service.model_name == "m" and not config.playground and "playground" not in out


def test_a_key_on_the_command_line_goes_before_the_environments(run, model, started, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_API_KEY", "one")
    run("serve", "--model", model, *PLAIN, "--api-key", "another")
    assert started[0].service.config.keys == ("another",)


def test_a_port_in_use_is_refused_before_the_model_loads(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = refused("serve", "--model", "no-such-model", "--port", taken.getsockname()[1])
    assert "port" in said and "in use" in said


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--port", "0", "--model", "/no/such/folder"], "/no/such/folder"),
        (["--port", "70000"], "port"),
        (["--port", "x"], "x"),
        (["--max-n", "0"], "max_n"),
        (["--cors-origins", "here"], "cors_origins"),
        (["--port", "0", "--drafter", "clairvoyance"], "clairvoyance"),
        (["--unknown-flag"], "--unknown-flag"),
    ],
)
def test_wrong_flags_are_refused_by_name(refused, flags, named):
    assert named in refused("serve", *flags)


def completed(model: str, url: str, prompt: str) -> int:
    """Tokens the server has written behind a prompt."""
    body = {"model": model, "prompt": prompt, "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60).json()["usage"]["completion_tokens"]


def test_an_interrupt_ends_it_gracefully(model):
    with process(model) as (running, url):
        assert completed(model, url, "abcabc") == 5
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
        assert running.stderr.read() == ""


def test_so_does_a_termination_and_the_access_log_holds_no_prompts(model):
    with process(model, "--access-log") as (running, url):
        assert completed(model, url, "a secret") == 5
        running.send_signal(signal.SIGTERM)
        out, err = running.communicate(timeout=30)
        assert running.returncode == 0
    assert '"POST /v1/completions HTTP/1.1" 200' in out + err and "secret" not in out + err
