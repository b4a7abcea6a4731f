"""The benchmark of serving: its clients, figures and verdicts by hand-made replies, and a run over double servers."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import serve
import serve_double
from serve import Run, command, compared, main
from serve_client import CHAT, COMPLETIONS, Call, Endpoint, Load, Prompts, Reply, closed_loop, write_load
from serve_contestants import (
    AUTO,
    FIXED,
    OFF,
    PEER,
    PEER_ALONE,
    Place,
    our_command,
    peer_command,
    peer_missing,
    peers_of,
    settings_of,
    write_peer_model,
)
from serve_double import DoubleServer, double_served
from serve_figures import Sample, Turn, findings, judge, latencies, percentiles
from serve_plot import as_markdown, plot, sentences
from serve_processes import PORT, ServerCommand, ServerFailure, free_port, healthy, running
from transformers import AutoModelForCausalLM, AutoTokenizer
from workloads import own_prompts

from foredraft import ConfigError
from foredraft.cli.main import app as foredraft_app
from foredraft.model.loading import find_path

DOUBLE = [sys.executable, serve_double.__file__, PORT]
BENCHMARK = str(Path(serve.__file__))


@pytest.fixture(scope="module")
def double() -> Iterator[tuple[str, DoubleServer]]:
    with double_served() as served:
        yield served


def endpoint(url: str, api: str = CHAT, **extra: object) -> Endpoint:
    return Endpoint(url=url, model="m", api=api, max_tokens=4, temperature=0.5, extra=extra, timeout=10)


def calls(*prompts: str) -> list[Call]:
    return [Call(prompt=prompt, seed=index) for index, prompt in enumerate(prompts)]


def reply(*arrivals: float, tokens: int = 4, whole: float = 1.0, text: str = "x") -> Reply:
    return Reply(tokens=tokens, prompt_tokens=3, arrivals=arrivals, whole_seconds=whole, text=text)


def sample(speed: float, *replies: Reply) -> Sample:
    """One that wrote 100 tokens, at this speed."""
    replies = replies or (reply(0.1, 0.2, tokens=100),)
    return Sample(load=Load(seconds=100 / speed, client_seconds=0.0, replies=replies))


def turn(concurrency: int, number: int = 0, **speeds: float) -> Turn:
    samples = {name: sample(speed) for name, speed in speeds.items()}
    return Turn(concurrency=concurrency, round=number, order=tuple(speeds), samples=samples)


@pytest.mark.parametrize("api", [CHAT, COMPLETIONS])
def test_a_client_counts_what_the_server_says_and_when_text_came(double, api):
    load = write_load(endpoint(double[0], api, ignore_eos=True), calls("a", "b", "c"), 2)
    assert [one.error for one in load.replies] == [None] * 3
    for one in load.replies:
        assert (one.tokens, one.prompt_tokens, one.text) == (4, 7, "one two three ")
        # The chunk without text is no arrival.
        assert len(one.arrivals) == 3 and 0 < one.arrivals[0] <= one.arrivals[-1] <= one.whole_seconds <= load.seconds
    body = double[1].bodies[-1]
    asked = {"model": "m", "max_tokens": 4, "temperature": 0.5, "stream": True, "ignore_eos": True}
    assert asked.items() <= body.items() and body["stream_options"] == {"include_usage": True}
    assert {asked["seed"] for asked in double[1].bodies[-3:]} == {0, 1, 2}


def test_what_fails_is_told_and_does_not_stop_the_others(double):
    load = write_load(endpoint(double[0]), calls("fail", "a", "break", "silent"), 1)
    refused, good, broken, silent = load.replies
    assert refused.error.startswith("BadRequestError: ") and "not this one" in refused.error
    assert good.error is None and silent.error is None
    assert broken.error == "ValueError: the stream ended without usage"
    assert refused.first_seconds is None and refused.tokens == 0
    assert silent.first_seconds == silent.whole_seconds and silent.between_seconds is None
    gone = write_load(endpoint(f"http://127.0.0.1:{free_port()}"), calls("a"), 1)
    assert gone.replies[0].error.startswith("APIConnectionError: ")


def test_never_more_than_the_clients_are_open_and_all_of_them_are(double):
    double[1].most = 0
    write_load(endpoint(double[0]), calls(*"abcdefghijkl"), 4)
    assert double[1].most == 4 and double[1].open == 0


def test_the_loop_is_closed_and_replies_keep_the_order_of_calls():
    began = []

    async def send(call: Call) -> Reply:
        began.append(call.prompt)
        await asyncio.sleep(0.05 if call.prompt == "slow" else 0)
        return Reply(text=call.prompt)

    replies = asyncio.run(closed_loop(send, calls("slow", "a", "b", "c"), 2))
    assert [one.text for one in replies] == ["slow", "a", "b", "c"]
    assert began == ["slow", "a", "b", "c"]  # the other client went on alone


def test_no_two_prompts_of_a_run_are_the_same_and_workloads_take_turns():
    prompts = Prompts(own_prompts(), seed=5)
    first, second = prompts.take(1000), prompts.take(1000)
    assert len({call.prompt for call in first + second}) == 2000
    assert [call.seed for call in (first + second)[:3]] == [5, 6, 7] and second[0].seed == 1005
    assert prompts.workloads == 9
    lasts = [call.prompt.partition("\n\n")[2] for call in first[:9]]
    assert lasts == [texts[0] for texts in own_prompts().values()]


def test_latencies_by_hand():
    replies = [reply(0.1, 0.4, 0.5, tokens=5, whole=0.6), reply(0.3, tokens=1, whole=0.3)]
    found = latencies(replies)
    assert found["first_token"]["p50"] == pytest.approx(0.2)
    assert found["between_tokens"] == {"p50": pytest.approx(0.1), "p99": pytest.approx(0.1)}
    assert found["between_chunks"]["p50"] == pytest.approx(0.2)
    assert found["whole"]["p99"] == pytest.approx(0.3 + 0.99 * 0.3)
    assert percentiles([]) is None and percentiles([2.0]) == {"p50": 2.0, "p99": 2.0}
    assert percentiles(range(101)) == {"p50": 50, "p99": 99}


def test_verdicts_hold_where_auto_is_far_ahead():
    turns = [
        turn(1, off=50, auto=110, transformers=40),
        turn(8, off=200, auto=199, transformers=90),
    ]
    verdicts = judge(turns)
    assert {name: its["holds"] for name, its in verdicts.items()} == dict.fromkeys(verdicts, True)
    assert verdicts["alone"]["median"] == pytest.approx(2.2)
    assert [row["concurrency"] for row in verdicts["never_under"]["rows"]] == [8, 1]
    assert verdicts["peak"]["median"] == pytest.approx(199 / 90)


@pytest.mark.parametrize(
    ("fails", "speeds"),
    [
        ("alone", {1: {"off": 100, "auto": 199, "transformers": 10}}),
        ("never_under", {1: {"off": 1, "auto": 2, "transformers": 1}, 4: {"off": 100, "auto": 96, "transformers": 2}}),
        ("peak", {1: {"off": 1, "auto": 3, "transformers": 2}}),
    ],
)
def test_each_verdict_fails_by_itself(fails, speeds):
    verdicts = judge([turn(concurrency, **its) for concurrency, its in speeds.items()])
    assert [name for name, its in verdicts.items() if not its["holds"]] == [fails]


def test_ratios_are_taken_within_a_round_and_peaks_too():
    # The machine is ten times slower in the second round; within each round auto is twice as fast.
    turns = [
        turn(1, 0, off=100, auto=200, transformers=50),
        turn(4, 0, off=200, auto=300, transformers=100),
        turn(1, 1, off=10, auto=20, transformers=5),
        turn(4, 1, off=20, auto=30, transformers=10),
    ]
    found = findings(turns)
    assert found["cells"][0]["contestants"]["auto"]["ratio"] == {"median": 2.0, "p25": 2.0, "p75": 2.0}
    assert found["cells"][1]["contestants"]["auto"]["ratio"]["median"] == pytest.approx(1.5)
    assert found["verdicts"]["peak"]["median"] == pytest.approx(3) and found["peaks"]["auto"]["median"] == 165
    assert found["requests"] == {"off": 4, "auto": 4, "transformers": 4} and found["errors"] == {}


def test_the_best_peer_counts_and_what_was_not_measured_is_not_judged():
    both = turn(2, off=10, auto=30, **{PEER: 10.0, PEER_ALONE: 20.0})
    assert judge([both])["peak"]["median"] == pytest.approx(1.5)
    assert judge([both])["alone"] is None
    assert judge([turn(1, off=10, auto=20)])["peak"] is None
    assert judge([turn(1, off=10, fixed=20)]) is None


def test_texts_unlike_those_of_off_are_counted():
    other = compared(sample(1, reply(text="a"), reply(text="b")), sample(1, reply(text="a"), reply(text="c")))
    assert other.unlike_off == 1


def test_a_contestant_that_failed_wholly_is_told_without_breaking_the_rest(tmp_path):
    bad = Sample(load=Load(seconds=1, client_seconds=0, replies=(Reply(error="gone"),)))
    turns = [Turn(concurrency=1, round=0, order=(OFF, AUTO), samples={OFF: bad, AUTO: sample(10)})]
    found = findings(turns) | {"complete": True, "target": "t", "dtype": "bfloat16", "device": "cpu", "threads": 1}
    found |= {"temperature": 0.0, "max_new_tokens": 4}
    assert found["errors"] == {OFF: ["gone"]} and found["cells"][0]["contestants"][OFF]["first_token"] is None
    assert not found["verdicts"]["alone"]["holds"] and "| 1 | off | 0 |" in as_markdown(found)
    assert plot(found, tmp_path / "x.svg") == (tmp_path / "x.svg").exists()


def place(tmp_path: Path, **changes: object) -> Place:
    own = {"target": "tiny", "dtype": "float32", "peer_dtype": "float32", "threads": 1, "cache_tokens": 1000, "most": 4}
    own |= {"temperature": 0.0, "ignore_eos": True, "peer_python": sys.executable, "folder": tmp_path / "weights"}
    return Place(**own | changes)


def test_our_commands_are_valid_and_forget_past_outputs(tmp_path):
    chosen = settings_of([], {})
    assert list(chosen) == [OFF, FIXED, AUTO] and chosen[OFF] == {"method": "none"}
    assert [chosen[name]["suffix_decoding_max_cached_requests"] for name in (FIXED, AUTO)] == [0, 0]
    for name, setting in chosen.items():
        started = our_command(name, setting, place(tmp_path))
        assert started.environment["OMP_NUM_THREADS"] == "1"
        arguments = [argument.replace(PORT, "8000") for argument in started.arguments]
        assert arguments[1:3] == ["-m", "foredraft"]
        foredraft_app.parse_args(arguments[3:], print_error=False, exit_on_error=False)
    assert list(settings_of(["auto"], {})) == [OFF, AUTO]
    assert settings_of(["mtp"], {"mtp": {"method": "mtp"}})["mtp"] == {"method": "mtp"}


def test_peers_batch_unless_they_are_asked_not_to(tmp_path):
    assert peers_of([]) == [PEER] and peers_of([AUTO]) == [] and peers_of([PEER_ALONE]) == [PEER_ALONE]
    batching, alone = (peer_command(name, place(tmp_path)).arguments for name in (PEER, PEER_ALONE))
    assert batching[-3:] == ["--continuous-batching", "--cb-num-blocks", "4"] and "--continuous-batching" not in alone
    assert batching[batching.index("--dtype") + 1] == "float32"


def test_a_python_without_what_transformers_needs_is_left_out(tmp_path, capsys):
    told = peer_missing(str(tmp_path / "python"))
    assert "No such file" in told
    assert serve.peers_here([PEER], [], str(tmp_path / "python"))[0] == []
    assert "left out: transformers: " in capsys.readouterr().err
    with pytest.raises(ConfigError, match="contestant 'transformers' cannot take part"):
        serve.peers_here([PEER], [PEER], str(tmp_path / "python"))


def test_the_peers_weights_are_the_targets_and_end_texts_as_ours_do(tmp_path):
    write_peer_model(place(tmp_path, target="tiny-draft"))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "weights")
    assert model.generation_config.eos_token_id is None and model.config.eos_token_id is None
    own = AutoTokenizer.from_pretrained(find_path("tiny-draft"))
    assert AutoTokenizer.from_pretrained(tmp_path / "weights").chat_template == own.chat_template
    write_peer_model(place(tmp_path, target="tiny-draft", ignore_eos=False, temperature=1.0))
    generation = AutoModelForCausalLM.from_pretrained(tmp_path / "weights").generation_config
    assert generation.eos_token_id is not None and (generation.do_sample, generation.top_k) == (True, 0)


def test_servers_run_while_the_context_lasts_and_stop_after_an_error(tmp_path):
    commands = [ServerCommand(name=name, arguments=DOUBLE) for name in ("a", "b c")]
    with pytest.raises(ZeroDivisionError), running(commands, tmp_path, start_seconds=30) as servers:
        assert [healthy(server.url) for server in servers.values()] == [True, True]
        assert servers["a"].cpu_seconds() > 0
        kept = list(servers.values())
        raise ZeroDivisionError
    assert [healthy(server.url) for server in kept] == [False, False]
    assert all(server.process.poll() is not None for server in kept)


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path):
    words = [sys.executable, "-c", "import sys; sys.exit('no such model')"]
    commands = [ServerCommand(name="a", arguments=DOUBLE), ServerCommand(name="b", arguments=words)]
    fails = pytest.raises(ServerFailure, match="server of b ended with exit code 1:\nno such model")
    with fails, running(commands, tmp_path, start_seconds=30):
        pass
    deaf = [sys.executable, "-c", "import time; time.sleep(60)"]
    late = pytest.raises(ServerFailure, match="did not answer in 0.2 s")
    with late, running([ServerCommand(name="b", arguments=deaf)], tmp_path, start_seconds=0.2):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_the_benchmark(tmp_path, number):
    code = (
        f"import sys, time; sys.path.append({str(Path(BENCHMARK).parent)!r})\n"
        "from pathlib import Path\n"
        "from serve_processes import ServerCommand, running\n"
        f"double = ServerCommand(name='a', arguments={DOUBLE!r})\n"
        f"with running([double], Path({str(tmp_path)!r}), start_seconds=30) as servers:\n"
        "    print(servers['a'].url, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as benchmark:
        url = benchmark.stdout.readline().strip()
        assert healthy(url)
        os.kill(benchmark.pid, number)
        benchmark.wait(20)
    deadline = time.monotonic() + 20
    while healthy(url) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not healthy(url)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--contestants eagle9", "contestant 'eagle9' is not known; known: off, fixed, auto, transformers"),
        ("--settings [1]", "--settings is"),
        ('--settings {"off":{"method":"ngram"}}', "--settings names 'off'"),
        ('--settings {"transformers":{"method":"ngram"}}', "--settings names 'transformers'"),
        ('--settings {"fixed":{"tree_sise":3}}', "contestant 'fixed': .*tree_sise"),
        ('--settings {"new":{}}', "contestant 'new' has no method"),
        ("--workloads cooking", "--workloads has cooking; known: code"),
        ("--concurrencies 0", "--concurrencies is 0"),
        ("--concurrencies 2 2", "names a value twice"),
        ("--rounds 0", "--rounds is 0"),
        ("--requests 0", "--requests is 0"),
        ("--requests-per-client 0", "--requests-per-client is 0"),
        ("--max-new-tokens 0", "max_new_tokens is 0"),
        ("--temperature -1", "temperature is -1"),
        ("--api speech", "--api 'speech' is not known; known: chat, completions"),
        ("--dtype fp8", "dtype 'fp8' is not known"),
        ("--target no/such/model", "no model at 'no/such/model'"),
        ("--threads none", "threads"),
        ("--no-such-option 1", "no-such-option"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, message):
    code = command(f"--output {tmp_path / 'x.json'} {arguments}".split())
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and err.count("\n") == 1 and err.startswith("error: ")
    assert re.search(message, err)


@pytest.fixture
def doubles(monkeypatch):
    """Doubles in place of every server; weights are not written."""
    monkeypatch.setattr(serve, "write_peer_model", lambda place: None)
    monkeypatch.setattr(serve, "peer_missing", lambda python: None)
    for name in ("our_command", "peer_command"):
        monkeypatch.setattr(serve, name, lambda name, *_: ServerCommand(name=name, arguments=DOUBLE))


def test_a_short_run_writes_everything(tmp_path, capsys, doubles, monkeypatch):
    monkeypatch.setattr(serve, "IDLE_SECONDS", 0.01)
    kept, write = [], serve.write_record
    monkeypatch.setattr(serve, "write_record", lambda record, path: (kept.append(record), write(record, path)))
    output, tables = tmp_path / "new" / "serve.json", tmp_path / "new" / "serve.md"
    code = main(
        output=output, concurrencies=(1, 4), requests=2, workloads="code,chat", rounds=2, dtype="fp32", markdown=tables
    )
    out, err = capsys.readouterr()
    assert code == 0 and "not that of off: none" in out and "auto at least 0.97 of off" in out
    record = json.loads(output.read_text())
    assert {"commit", "command", "hardware", "versions", "prompts_sha256", "idle_cpu_share"} <= set(record)
    assert [one["complete"] for one in kept] == [False, False, False, True] and record["complete"]
    assert [cell["concurrency"] for cell in record["cells"]] == [1, 4]
    assert list(record["contestants"]) == list(record["commands"]) == [OFF, FIXED, AUTO, PEER]
    assert record["requests"] == dict.fromkeys(record["contestants"], 2 * (2 + 8)) and record["errors"] == {}
    assert [turn["order"][0] for turn in record["turns"]] == [OFF, FIXED, FIXED, AUTO]
    own = record["turns"][1]["samples"][AUTO]
    assert own["tokens"] == [4] * 8 and own["chunks"] == [3] * 8 and len(own["first_token"]) == 8
    assert own["tokens_per_second"] == pytest.approx(32 / own["seconds"], rel=0.01)
    assert tables.read_text() == as_markdown(record) and tables.read_text() in out
    assert output.with_suffix(".svg").exists() or "matplotlib is not installed" in err
    assert sentences(record)[-1].startswith("clients took up to ")


def test_failed_requests_and_texts_that_changed_in_fp32_fail_the_run(capsys):
    good = {"unlike_off": {OFF: 0, AUTO: 0, PEER: 3}, "errors": {}}
    assert serve.verdict(good, "float32") == 0
    assert serve.verdict(good | {"errors": {AUTO: ["gone"]}}, "bfloat16") == 1
    changed = good | {"unlike_off": {OFF: 0, AUTO: 1}}
    assert (serve.verdict(changed, "float32"), serve.verdict(changed, "bfloat16")) == (1, 0)
    assert "requests of auto that failed: 1, the first with gone" in capsys.readouterr().out


def test_a_cell_has_every_workload_alike_often():
    run = Run({}, {}, Prompts(own_prompts(), 0), least=18, per_client=2)
    assert [run.requests_in(concurrency) for concurrency in (1, 9, 16, 64)] == [18, 18, 36, 135]


def test_a_server_that_dies_ends_the_run(tmp_path):
    with running([ServerCommand(name=OFF, arguments=DOUBLE)], tmp_path, start_seconds=30) as servers:
        server = servers[OFF]
        run = Run(servers, {OFF: endpoint(server.url)}, Prompts({"chat": ["a"]}, 0), least=1, per_client=1)
        assert [turn.samples[OFF].tokens for turn in run.take_turns([1, 2], 1)] == [4, 8]
        server.process.kill()
        server.process.wait()
        with pytest.raises(ServerFailure, match="server of off ended with exit code -9"):
            run.take_turn(1, 0, 0)
