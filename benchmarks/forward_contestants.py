"""Who takes part in the benchmark of the forward: each a process that answers one request at a time."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from serve_processes import SHOWN_LINES, STOP_SECONDS, ServerProcess, end_with_parent, ended_by_signal

from foredraft.core.errors import ConfigError, ForedraftError

NATIVE, INT8, MODULE = "native", "native int8", "module"
TRANSFORMERS, LLAMA, OPENVINO = "transformers", "llama.cpp", "OpenVINO"
HERE = Path(__file__).resolve().parent
HUGGING_FACE, GGUF, OPENVINO_FOLDER = "transformers", "model.gguf", "openvino"  # in the folder of a shape
NATIVE_LINE = "native path"  # how the line of a model begins that runs on it


class ContestantFailure(ForedraftError):
    """A contestant that ended, or could not do what it was asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrant:
    """How a contestant is started.

    Attributes:
        name: Its name.
        command: Program and arguments.
        model: Which of the files of a shape it reads.
        needs: Modules that its Python must have.
        otherwise: What to do where it has not, in half a line.
    """

    name: str
    command: Sequence[str]
    model: str
    needs: Sequence[str] = ()
    otherwise: str = ""

    def missing(self) -> str | None:
        """Why it cannot take part, in one line; none where it can."""
        python, code = self.command[0], "import " + ", ".join(self.needs or ["sys"])
        try:
            done = subprocess.run([python, "-c", code], capture_output=True, text=True)
        except OSError as error:
            return f"{python}: {error.strerror}"
        if done.returncode == 0:
            return None
        return f"{last_line(done.stderr)}; {self.otherwise}"


def entrants(llama_python: str, openvino_python: str, kernels: str) -> dict[str, Entrant]:
    """Everybody there is, ours first."""
    ours = [sys.executable, str(HERE / "forward_foredraft.py")]
    build, name_llama = "build it with pip install ./native", "name a Python that has it with --llama-python"
    native = {"model": HUGGING_FACE, "needs": ["foredraft_native"], "otherwise": build}
    every = [
        Entrant(name=NATIVE, command=[*ours, kernels, "bf16"], **native),
        Entrant(name=INT8, command=[*ours, kernels, "int8"], **native),
        Entrant(name=MODULE, command=[*ours, "off", "bf16"], model=HUGGING_FACE),
        Entrant(name=TRANSFORMERS, command=[sys.executable, str(HERE / "forward_transformers.py")], model=HUGGING_FACE),
        Entrant(
            name=LLAMA,
            command=[llama_python, str(HERE / "forward_llama.py")],
            model=GGUF,
            needs=["llama_cpp", "gguf"],
            otherwise=name_llama,
        ),
        Entrant(
            name=OPENVINO,
            command=[openvino_python, str(HERE / "forward_openvino.py")],
            model=OPENVINO_FOLDER,
            needs=["openvino", "openvino_genai"],
            otherwise="name a Python that has it with --openvino-python",
        ),
    ]
    return {entrant.name: entrant for entrant in every}


def chosen(every: Mapping[str, Entrant], names: Sequence[str]) -> tuple[dict[str, Entrant], dict[str, str]]:
    """Those of `names`, or all, that can take part, and why the others cannot. Raises `ConfigError` for other names."""
    for name in names:
        if name not in every:
            raise ConfigError(f"contestant {name!r} is not known; known: {', '.join(every)}")
    reasons = {name: entrant.missing() for name, entrant in every.items() if not names or name in names}
    left_out = {name: reason for name, reason in reasons.items() if reason}
    return {name: every[name] for name in reasons if name not in left_out}, left_out


class Worker:
    """A contestant's process; it works while it is asked, and else waits for a line.

    Attributes:
        entrant: How it was started.
        log: The file of what it says beside its answers.
        process: The process.
    """

    cpu_seconds = ServerProcess.cpu_seconds  # of a process, whatever it does

    def __init__(self, entrant: Entrant, threads: int, folder: Path):
        self.entrant, self.log = entrant, folder / f"{entrant.name}.log"
        quiet = {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                list(entrant.command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | quiet,
                text=True,
                start_new_session=True,  # a key press meant for the benchmark is not for it
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )

    def ask(self, do: str, **arguments: object) -> dict:
        """Its answer. Raises `ContestantFailure` where it cannot do that, or has ended."""
        try:
            self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self.process.stdin.flush()
        except OSError:
            line = ""
        else:
            line = self.process.stdout.readline()
        if not line:
            raise ContestantFailure(f"{self.entrant.name} ended with exit code {self.process.wait()}: {self.tail()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ContestantFailure(f"{self.entrant.name} cannot {do}: {answer['error']}")
        return answer

    def tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(["", *lines[-SHOWN_LINES:]])

    def stop(self) -> None:
        """Let it end, kill it where it does not; may be called again."""
        try:
            self.process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        except (OSError, ValueError):  # it has ended, or been told before
            self.process.wait()


@contextmanager
def at_work(every: Mapping[str, Entrant], threads: int, folder: Path) -> Iterator[dict[str, Worker]]:
    """A worker of each entrant while the context lasts, each started when the one before it answers.

    They are stopped on leaving, on SIGTERM too. Raises `ContestantFailure` when one does not start.
    """
    with ExitStack() as stack:
        stack.enter_context(ended_by_signal())
        workers = {}
        for name, entrant in every.items():
            workers[name] = Worker(entrant, threads, folder)
            stack.callback(workers[name].stop)
            workers[name].ask("ready")
        yield workers


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it failed"])[-1]
