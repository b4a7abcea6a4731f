"""A server that speculates under load: tokens a second and latencies by requests in flight, and verdicts.

    python benchmarks/serve.py --output docs/results/serve-cpu.json

Every contestant is a server of its own over the same weights and threads, ours in one dtype: foredraft without
speculation (`off`), with one fixed drafter, and with `auto`; beside them `transformers serve` with continuous batching,
in the dtype that torch is fast in. All run at once and cost nothing while nobody asks them, which the record shows. A
cell is a number of clients, each of which sends its next request when its last has ended. The contestants take turns
cell by cell over several rounds, a different one first each time, on the same prompts and seeds; no two prompts of a
run are the same (see `serve_client.Prompts`).

Three verdicts: `auto` is at least twice `off` for one user, at no concurrency under 0.97 of it, and its peak is at
least twice that of transformers. In fp32 a contestant of ours that writes another text than `off` fails the run, and so
does any request that is not served.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep
from typing import Annotated

import torch
from command_line import run_command
from cyclopts import App, Parameter
from drafters import changes_in, names_in
from generate import digest
from provenance import provenance
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress
from serve_client import APIS, CHAT, Endpoint, Load, Prompts, write_load
from serve_contestants import (
    OFF,
    PEERS,
    Place,
    our_command,
    peer_command,
    peer_missing,
    peers_of,
    settings_of,
    write_peer_model,
)
from serve_figures import Sample, Turn, findings
from serve_plot import as_markdown, plot, sentences
from serve_processes import ServerCommand, ServerFailure, ServerProcess, running
from workloads import own_prompts

from foredraft import ConfigError, SamplingParams
from foredraft.core.errors import require
from foredraft.core.sampling_params import whole
from foredraft.core.speculation_config import AUTO, one_of
from foredraft.evaluation.report import write_record
from foredraft.evaluation.turns import rotated
from foredraft.model.devices import find_device, find_dtype
from foredraft.model.loading import find_path

Many = Parameter(consume_multiple=True, negative=())
IDLE_SECONDS = 2.0  # in which nobody is asked
# Told of in the record.
SHARED = ("target", "dtype", "peer_dtype", "threads", "cache_tokens", "temperature", "ignore_eos")
app = App(help=__doc__)


@app.default
def main(
    *,
    output: Path,
    target: str = "tiny",
    contestants: str = "",
    settings: str = "{}",
    workloads: str = "",
    concurrencies: Annotated[tuple[int, ...], Many] = (1, 2, 4, 8, 16, 32, 64),
    requests: int = 18,
    requests_per_client: int = 2,
    max_new_tokens: int = 64,
    ignore_eos: bool = True,
    temperature: float = 0.0,
    rounds: int = 2,
    seed: int = 0,
    api: str = CHAT,
    dtype: str = AUTO,
    peer_dtype: str = AUTO,
    threads: int = 2,
    cache_tokens: int = 32768,
    peer_python: Path = Path(sys.executable),
    start_seconds: float = 300.0,
    markdown: Path | None = None,
) -> int:
    """Measure, print, and write OUTPUT (JSON, anew after every cell) with a picture beside it.

    Args:
        contestants: Names with commas between them: off, fixed, auto, transformers, and `transformers one by one`,
            which does not batch; all but the last where none is given.
        settings: Keys of the speculative config to change, as JSON by contestant, such as
            {"fixed": {"method": "eagle3"}}; a new name with a method adds a contestant.
        workloads: Names with commas between them; all there are where none is given.
        concurrencies: Clients at once.
        requests: Least requests of a cell; as many more as give every workload alike many.
        requests_per_client: Least requests of each client.
        ignore_eos: Write on to max_new_tokens past the end of text.
        api: chat or completions.
        dtype, peer_dtype: Of our servers and of the peers; auto is what is fast for each.
        cache_tokens: Tokens that the cache of each server holds.
        peer_python: Python that runs `transformers serve`, which needs accelerate.
        start_seconds: Longest time until a server answers.
        markdown: File for the table as markdown.
    """
    named, chosen = names_in(contestants), settings_of(names_in(contestants), changes_in(settings))
    texts = texts_of(names_in(workloads))
    counts = {"--rounds": rounds, "--requests": requests, "--requests-per-client": requests_per_client}
    check(concurrencies, counts | {"--threads": threads, "--cache-tokens": cache_tokens}, api)
    SamplingParams(max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)
    find_path(target)
    about = {"target": target, **dtypes(dtype, peer_dtype), "device": "cpu", "threads": threads}
    peers, left_out = peers_here(peers_of(named), named, str(peer_python))
    about |= {"cache_tokens": cache_tokens, "api": api, "temperature": temperature, "ignore_eos": ignore_eos}
    about["workloads"] = list(texts)
    about |= {"max_new_tokens": max_new_tokens, "requests": requests, "requests_per_client": requests_per_client}
    about |= {"rounds": rounds, "seed": seed, "concurrencies": concurrencies, "prompts_sha256": digest(texts)}
    with TemporaryDirectory(prefix="foredraft-serve-") as folder:
        own = {name: about[name] for name in SHARED} | {"most": max(concurrencies), "peer_python": str(peer_python)}
        place = Place(folder=Path(folder) / "weights", **own)
        commands = commands_of(chosen, peers, place)
        about = provenance() | about | told_of(commands, chosen, left_out, place)
        result = measure(commands, place, about, Prompts(texts, seed), start_seconds, output)
    show(result, output.with_suffix(".svg"), markdown)
    return verdict(result, about["dtype"])


def measure(
    commands: Sequence[ServerCommand], place: Place, about: dict, prompts: Prompts, start_seconds: float, output: Path
) -> dict:
    """Start everybody, warm up, take all turns; what is known is written to `output` after every cell."""
    with running(commands, place.folder.parent, start_seconds=start_seconds) as servers:
        endpoints = {name: endpoint_of(server, place, about) for name, server in servers.items()}
        run = Run(servers, endpoints, prompts, about["requests"], about["requests_per_client"])
        about |= {"idle_cpu_share": run.warm_up(about["concurrencies"])}
        keep = partial(keep_record, about, output)
        return about | follow(run, about["concurrencies"], about["rounds"], keep)


def keep_record(about: dict, output: Path, found: dict) -> None:
    write_record(about | found, output)


def texts_of(names: list[str]) -> dict[str, list[str]]:
    """Prompts by workload. Raises `ConfigError` for one that there is not."""
    own = own_prompts()
    unknown = [name for name in names if name not in own]
    require(not unknown, f"--workloads has {', '.join(unknown)}; known: {', '.join(own)}")
    return {name: own[name] for name in names or own}


def check(concurrencies: tuple[int, ...], counts: dict[str, int], api: str) -> None:
    """Raises `ConfigError` for a number that cannot be."""
    require(bool(concurrencies), "there is no cell; give at least one of --concurrencies")
    require(len(set(concurrencies)) == len(concurrencies), f"{list(concurrencies)} names a value twice; give each once")
    for concurrency in concurrencies:
        whole("--concurrencies", concurrency, 1)
    for name, count in counts.items():
        whole(name, count, 1)
    one_of("--api", api, APIS)


def dtypes(own: str, peers: str) -> dict[str, str]:
    """What the two are on this CPU: a model that the native path covers, and what torch computes for the peers."""
    place = find_device("cpu")
    ours = place.native_dtype() if own == AUTO else find_dtype(own, place)
    return {"dtype": torch_name(ours), "peer_dtype": torch_name(find_dtype(peers, place))}


def torch_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def peers_here(peers: list[str], named: list[str], python: str) -> tuple[list[str], dict[str, str]]:
    """The peers that can be started, and why the others cannot. Raises `ConfigError` where one was asked for."""
    missing = peer_missing(python) if peers else None
    if missing is None:
        return peers, {}
    for name in peers:
        if name in named:
            raise ConfigError(f"contestant {name!r} cannot take part: {missing}")
        print(f"left out: {name}: {missing}", file=sys.stderr)
    return [], dict.fromkeys(peers, missing)


def commands_of(chosen: Mapping[str, dict], peers: Sequence[str], place: Place) -> list[ServerCommand]:
    """The servers to start; the peer's weights are written for it."""
    if peers:
        write_peer_model(place)
    ours = [our_command(name, setting, place) for name, setting in chosen.items()]
    return ours + [peer_command(name, place) for name in peers]


def told_of(
    commands: Sequence[ServerCommand], chosen: Mapping[str, dict], left_out: dict[str, str], place: Place
) -> dict:
    """What the record says of the contestants; the temporary folder has no name in it."""
    lines = {command.name: " ".join(command.arguments).replace(str(place.folder), "WEIGHTS") for command in commands}
    peers = {name: {"peer": True} for name in lines if name in PEERS}
    return {"contestants": dict(chosen) | peers, "commands": lines, "left_out": left_out}


def endpoint_of(server: ServerProcess, place: Place, about: Mapping) -> Endpoint:
    """How a server is asked. transformers has no `ignore_eos`; its weights are stored without an end of text."""
    peer = server.command.name in PEERS
    return Endpoint(
        url=server.url,
        model=str(place.folder) if peer else place.target,
        api=about["api"],
        max_tokens=about["max_new_tokens"],
        temperature=place.temperature,
        extra={} if peer else {"ignore_eos": place.ignore_eos},
    )


class Run:
    """All servers and what they are asked.

    Attributes:
        servers, endpoints: By contestant.
        prompts: From which every cell takes its own.
        least, per_client: Requests of a cell, of a client.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerProcess],
        endpoints: Mapping[str, Endpoint],
        prompts: Prompts,
        least: int,
        per_client: int,
    ):
        self.servers, self.endpoints, self.prompts = servers, endpoints, prompts
        self.least, self.per_client = least, per_client

    def warm_up(self, concurrencies: Sequence[int]) -> dict[str, float]:
        """A request of every client from everybody at every concurrency; then the CPU use of servers nobody asks."""
        for concurrency in concurrencies:
            calls = self.prompts.take(concurrency)
            for endpoint in self.endpoints.values():
                write_load(endpoint, calls, concurrency)
        before = {name: server.cpu_seconds() for name, server in self.servers.items()}
        sleep(IDLE_SECONDS)
        return {name: (server.cpu_seconds() - before[name]) / IDLE_SECONDS for name, server in self.servers.items()}

    def requests_in(self, concurrency: int) -> int:
        """Requests of a cell: enough for every client, and every workload alike often."""
        needed, kinds = max(self.least, self.per_client * concurrency), self.prompts.workloads
        return -(-needed // kinds) * kinds

    def take_turns(self, concurrencies: Sequence[int], rounds: int) -> Iterator[Turn]:
        """Every cell once a round."""
        for number in range(rounds):
            for position, concurrency in enumerate(concurrencies):
                yield self.take_turn(concurrency, number, position)

    def take_turn(self, concurrency: int, number: int, position: int) -> Turn:
        """Everybody writes the cell once; who begins moves on with the round's number and the position in it."""
        calls = self.prompts.take(self.requests_in(concurrency))
        order = rotated(list(self.servers), number + position)
        samples = {}
        for name in order:
            before = self.cpu_seconds()
            load = write_load(self.endpoints[name], calls, concurrency)
            samples[name] = self.sample(name, load, before)
        samples = {name: compared(samples[name], samples[OFF]) for name in self.servers}
        return Turn(concurrency=concurrency, round=number, order=tuple(order), samples=samples)

    def cpu_seconds(self) -> dict[str, float]:
        return {name: server.cpu_seconds() for name, server in self.servers.items()}

    def sample(self, name: str, load: Load, before: Mapping[str, float]) -> Sample:
        """Raises `ServerFailure` when a server has ended."""
        for server in self.servers.values():
            server.require_alive()
        used = {other: seconds - before[other] for other, seconds in self.cpu_seconds().items()}
        idle = sum(seconds for other, seconds in used.items() if other != name)
        return Sample(load=load, server_seconds=used[name], idle_seconds=idle)


def compared(sample: Sample, reference: Sample) -> Sample:
    """With the number of replies whose text is not the reference's."""
    pairs = zip(sample.load.replies, reference.load.replies, strict=True)
    return replace(sample, unlike_off=sum(own.text != other.text for own, other in pairs))


def follow(run: Run, concurrencies: Sequence[int], rounds: int, keep: Callable[[dict], None]) -> dict:
    """Take all turns; what they say is handed to `keep` after every cell, and at last returned."""
    done: list[Turn] = []
    in_all = rounds * len(concurrencies)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("cells", total=in_all)
        for turn in run.take_turns(concurrencies, rounds):
            done.append(turn)
            bar.update(task, advance=1, description=f"round {turn.round + 1}: {turn.concurrency} at once")
            found = findings(done) | {"complete": len(done) == in_all, "load_average_after": os.getloadavg()}
            keep(found)
    return found


def show(result: dict, picture: Path, markdown: Path | None) -> None:
    """The picture, the table as markdown where it is wanted, and on the screen with the verdicts."""
    table = as_markdown(result)
    if not plot(result, picture):
        print("no plot: matplotlib is not installed", file=sys.stderr)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(table, encoding="utf-8")
    print(table, *sentences(result), sep="\n")


def verdict(found: Mapping, dtype: str) -> int:
    """1 where a request failed, or one of ours changed the text in fp32, which rounding does not explain."""
    changed = {name: count for name, count in found["unlike_off"].items() if count}
    print(f"requests whose text is not that of {OFF}: {changed or 'none'}")
    for name, errors in found["errors"].items():
        print(f"requests of {name} that failed: {len(errors)}, the first with {errors[0]}")
    ours = [name for name in changed if name not in PEERS]
    return int(bool(found["errors"]) or (bool(ours) and dtype == "float32"))


def command(arguments: list[str] | None = None) -> int:
    """Run the command line; a mistake is one line and exit code 2, a server that fails exit code 1."""
    return run_command(app, arguments, ServerFailure)


if __name__ == "__main__":
    sys.exit(command())
