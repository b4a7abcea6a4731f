"""What only a process of its own shows: interruption, a reader that leaves, and the module entry."""

import os
import signal
import subprocess
import sys

import pytest

ENVIRONMENT = os.environ | {"PYTHONPATH": "src", "PYTHONUNBUFFERED": "1"}


def heed_interrupts() -> None:
    """A shell's background job ignores interrupts and hands that down; a user's command does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def writing(model):
    """`foredraft generate` at work on a text much longer than anybody waits for, its first line already printed."""
    arguments = [
        "--model",
        model,
        "--dtype",
        "fp32",
        "--max-new-tokens",
        "100",
        "--n",
        "1000",
        "--json",
        "--ignore-eos",
    ]
    command = [sys.executable, "-m", "foredraft", "generate", "hi", *arguments, "--max-batch", "1"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed_interrupts,
        text=True,
        env=ENVIRONMENT,
        start_new_session=True,
    ) as process:
        assert process.stdout.readline().startswith("{")
        yield process
        process.kill()


def test_an_interrupt_ends_it_without_a_traceback(writing):
    writing.send_signal(signal.SIGINT)
    assert writing.wait(timeout=60) == 130
    assert writing.stderr.read() == ""


def test_a_closed_pipe_ends_it_quietly(writing):
    writing.stdout.close()
    assert writing.wait(timeout=60) == 1
    assert writing.stderr.read() == ""
