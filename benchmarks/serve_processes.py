"""Servers in processes of their own: started one after another, watched, and stopped whatever happens."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from foredraft.core.errors import ForedraftError

HOST = "127.0.0.1"
POLL_SECONDS = 0.1
STOP_SECONDS = 15.0
SHOWN_LINES = 12  # of a log, where its server failed
PORT = "{port}"  # where a command names it
PARENT_DIES = 1  # prctl's PR_SET_PDEATHSIG


class ServerFailure(ForedraftError):
    """A server that did not start, or ended while it was measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """How a contestant's server is started.

    Attributes:
        name: Of the contestant.
        arguments: Program and arguments; `PORT` in them is filled in.
        environment: Variables beside our own.
    """

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


class ServerProcess:
    """A running server; what it says is in its log.

    Attributes:
        command: How it was started.
        url: Its address.
        log: The file of its output.
        process: The process.
    """

    def __init__(self, command: ServerCommand, folder: Path):
        """Start it on a free port, its log in `folder`; it does not answer yet."""
        port = free_port()
        self.command, self.url = command, f"http://{HOST}:{port}"
        self.log = folder / f"{command.name.replace(' ', '-')}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [argument.replace(PORT, str(port)) for argument in command.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(command.environment),
                start_new_session=True,  # a key press meant for the benchmark is not for the server
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )

    def wait(self, seconds: float) -> None:
        """Wait until /health answers. Raises `ServerFailure` when it ends instead, or takes longer."""
        deadline = monotonic() + seconds
        while not healthy(self.url):
            self.require_alive()
            if monotonic() > deadline:
                raise ServerFailure(f"the server of {self.command.name} did not answer in {seconds:g} s{self.tail()}")
            sleep(POLL_SECONDS)

    def require_alive(self) -> None:
        """Raises `ServerFailure` when it has ended."""
        code = self.process.poll()
        if code is not None:
            raise ServerFailure(f"the server of {self.command.name} ended with exit code {code}{self.tail()}")

    def tail(self) -> str:
        """The last lines of its log, below the message they belong to."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join([":", *lines[-SHOWN_LINES:]])

    def cpu_seconds(self) -> float:
        """CPU time it has used, its threads together; 0 where /proc does not tell."""
        path = Path(f"/proc/{self.process.pid}/stat")
        if not path.exists():
            return 0.0
        fields = path.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ask it to end, kill it and what it started where it does not; may be called again."""
        if self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def running(
    commands: Sequence[ServerCommand], folder: Path, *, start_seconds: float
) -> Iterator[dict[str, ServerProcess]]:
    """All servers by name while the context lasts, each started when the one before it answers.

    So none measures its costs while another loads. They are stopped on leaving, on SIGTERM too, and where this process
    is killed the system ends them. Raises `ServerFailure` when one does not start.
    """
    servers: dict[str, ServerProcess] = {}
    with ExitStack() as stack:
        stack.enter_context(ended_by_signal())
        for command in commands:
            server = ServerProcess(command, folder)
            stack.callback(server.stop)
            server.wait(start_seconds)
            servers[command.name] = server
        yield servers


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Make SIGTERM leave contexts as an interrupt does."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def end_with_parent() -> None:
    """In a new process: be sent SIGTERM when the parent dies."""
    ctypes.CDLL(None).prctl(PARENT_DIES, signal.SIGTERM)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False
