"""A server under thousands of short calls, right and wrong, of clients that stay and clients that leave.

    OMP_NUM_THREADS=1 python benchmarks/soak.py --output docs/results/soak-cpu.json

Starts `foredraft serve`, makes the calls that a seed draws, and checks: every call has one answer of the right kind,
calls with a seed the same text whatever they draft with, the server's counts are the clients', no cache slot is leaked
when it is idle, its memory stays flat after the first fifth of the calls, and it ends by itself when told to.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter
from typing import IO

import httpx
from cyclopts import App
from provenance import ROOT, provenance
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from soak_calls import CHAT, Call, Clients, World
from soak_checks import WARM_UP, Ledger, Memory, Told, memory_record, thinned
from soak_client import answer_to

from foredraft.evaluation.report import write_record

BODY_LIMIT = 65_536
SAMPLE_SECONDS = 0.25
IDLE_SECONDS = 20.0  # in which the last clients' texts must have been given up
END_SECONDS = 60.0
MOST_SAMPLES = 200  # of memory, in the file
GROWTH_SHARE, GROWTH_BYTES = 0.05, 30 * 2**20  # memory is flat where it grows by less than either
KERNEL_CACHE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
NO_HTTP = "Invalid HTTP request received"  # what the server says of clients that speak something else
STORIES = str(ROOT.parent / "shared" / "models" / "stories260K")
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    model: str = STORIES,
    dtype: str = "fp32",
    requests: int = 10_000,
    concurrency: int = 64,
    threads: int = 1,
    max_batch: int = 8,
    seed: int = 0,
    patience: float = 120.0,
    kernel_cache: int = 64,
) -> int:
    """Soak a server and write OUTPUT (JSON); 1 where anything is not as it should be.

    Parameters
    ----------
    requests: Calls in all.
    concurrency: Clients at a time.
    patience: Seconds after which a call without an end counts as hung.
    kernel_cache: Kernels that oneDNN keeps, one for each weight shape and number of rows, nearly 1 MB each. Its own
        limit of 1,024 takes far more calls to reach than a soak makes, and would hide what else grows; 0 leaves it.
    """
    flags = ["--model", model, "--dtype", dtype, "--threads", str(threads), "--max-batch", str(max_batch)]
    settings = {"model": model, "dtype": dtype, "threads": threads, "max_batch": max_batch, "seed": seed}
    settings |= {"requests": requests, "concurrency": concurrency, "patience": patience, "body_limit": BODY_LIMIT}
    settings |= {"kernel_cache": kernel_cache}
    environment = {KERNEL_CACHE: str(kernel_cache)} if kernel_cache else {}
    flags += ["--max-body-bytes", str(BODY_LIMIT)]
    with TemporaryFile("w+") as said, started(flags, said, environment) as server:
        soak = Soak(server=server, world=world_of(server), requests=requests, patience=patience)
        asyncio.run(soak.run(seed, concurrency))
        told = when_idle(server.url)
        ended = server.stop()
        said.seek(0)
        complaints = [line for line in said.read().splitlines() if NO_HTTP not in line]
    result = provenance() | {"settings": settings} | soak.record()
    result |= {"server": told.record(), "server_said": complaints}
    result["verdicts"] = soak.verdicts(told) | {"it ended when told to, without a complaint": ended and not complaints}
    write_record(result, output)
    show(result)
    return int(not all(result["verdicts"].values()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The server's process and where it listens."""

    process: subprocess.Popen
    url: str

    @property
    def place(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def resident(self) -> int:
        """Bytes of memory it holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024

    def stop(self) -> bool:
        """Ask it to end; whether it did."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(END_SECONDS) == 0
        except subprocess.TimeoutExpired:
            return False


@contextmanager
def started(flags: list[str], said: IO[str], environment: Mapping[str, str]) -> Iterator[Server]:
    """`foredraft serve` on a free port; what it complains about goes to `said`."""
    command = [sys.executable, "-m", "foredraft", "serve", "--port", "0", *flags]
    own = os.environ | environment
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, cwd=ROOT, env=own)
    try:
        announced = re.search(r"http://\S+?(?=/v1)", process.stdout.readline())
        assert announced is not None, "the server has not started"
        yield Server(process=process, url=announced[0])
    finally:
        process.kill()
        process.communicate()


def world_of(server: Server) -> World:
    (card,) = httpx.get(f"{server.url}/v1/models").json()["data"]
    said = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    chat = httpx.post(server.url + CHAT, json=said, timeout=60).status_code == 200
    return World(model=card["id"], context=card["max_model_len"], body_limit=BODY_LIMIT, chat=chat)


def told_by(url: str) -> Told:
    return Told.from_text(httpx.get(f"{url}/metrics", timeout=60).text)


def when_idle(url: str) -> Told:
    """What the server says once nothing waits or runs; its last word where that does not come to be."""
    end = perf_counter() + IDLE_SECONDS
    while not (told := told_by(url)).idle and perf_counter() < end:
        pass
    return told


@dataclass(kw_only=True)
class Soak:
    """One run.

    Attributes:
        memory: Samples of the server's memory.
        early: What the server told after the warm-up.
        begun: What it told before anything.
    """

    server: Server
    world: World
    requests: int
    patience: float
    ledger: Ledger = field(default_factory=Ledger)
    memory: list[Memory] = field(default_factory=list)
    early: Told | None = None
    begun: Told | None = None
    made: int = 0
    seconds: float = 0.0

    async def run(self, seed: int, concurrency: int) -> None:
        self.begun = told_by(self.server.url)
        start = perf_counter()
        with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as progress:
            task = progress.add_task("calls", total=self.requests)
            watching = asyncio.create_task(self.watch())
            calls = Clients(self.world, seed).calls(self.requests)
            clients = [self.client(calls, lambda: progress.advance(task)) for _ in range(concurrency)]
            await asyncio.gather(*clients)
            watching.cancel()
        self.seconds = perf_counter() - start

    async def client(self, calls: Iterator[Call], advance: Callable[[], None]) -> None:
        """Make calls one after another until there are none left."""
        for call in calls:
            answer = await answer_to(call, *self.server.place, patience=self.patience)
            self.ledger.add(call, answer)
            self.made += 1
            advance()

    async def watch(self) -> None:
        """Note the server's memory from time to time."""
        while True:
            self.memory.append(Memory(calls=self.made, resident=self.server.resident()))
            if self.early is None and self.made >= WARM_UP * self.requests:
                self.early = await asyncio.to_thread(told_by, self.server.url)
            await asyncio.sleep(SAMPLE_SECONDS)

    def verdicts(self, told: Told) -> dict[str, bool]:
        memory = memory_record(self.memory, self.requests)
        flat = memory["growth"] <= max(GROWTH_SHARE * memory["after_warm_up"], GROWTH_BYTES)
        return self.ledger.verdicts(told.since(self.begun)) | {"memory is flat": flat}

    def record(self) -> dict:
        return {
            "seconds": self.seconds,
            "calls_per_second": self.requests / self.seconds,
            **self.ledger.record(),
            "memory": memory_record(self.memory, self.requests),
            "memory_samples": [asdict(sample) for sample in thinned(self.memory, MOST_SAMPLES)],
            "metric_samples_after_warm_up": len(self.early.values),
        }


def show(result: dict) -> None:
    console = Console(width=None if Console().is_terminal else 150)
    memory = {name: round(value / 2**20, 2) for name, value in result["memory"].items() if name != "growth_share"}
    console.print(f"{result['settings']['requests']} calls in {result['seconds']:.0f} s; memory in MiB: {memory}")
    for problem in result["problems"]["first"]:
        console.print(f"  {problem}", markup=False)
    for verdict, holds in result["verdicts"].items():
        console.print(f"{'yes' if holds else 'NO '}  {verdict}")


if __name__ == "__main__":
    app()
