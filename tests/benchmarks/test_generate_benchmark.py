"""The benchmark of generation beside peers: its figures by hand-made samples, its processes by doubles."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import generate
import numpy as np
import pytest
import torch
from contestants import FOREDRAFT, PLAIN, TRANSFORMERS, Sample
from forward_contestants import HUGGING_FACE, LLAMA, OPENVINO, ContestantFailure, Entrant, at_work
from forward_gguf import require_plain
from generate import command
from generate_models import digest, model_files
from generate_peers import (
    LLAMA_WAYS,
    OPENVINO_WAYS,
    OURS,
    SYSTEMS,
    WAYS,
    Task,
    clocks_of,
    find_peers,
    load,
    peer_contestants,
    process_of,
)
from generate_plot import plot
from generate_systems import compare
from generate_systems_table import as_markdown, sentences
from generate_turns import Stage
from plain_model import load_plain
from safetensors.torch import load_file
from summary import Turn, summarise
from waiting import Waiting

from foredraft import ConfigError

DOUBLE = """
import sys
from line_worker import LineWorker

class Double(LineWorker):
    def load(self, target, draft, threads, length, contestants):
        self.seconds = {name: 1 / (1 + place) for place, name in enumerate(contestants)}
        print("a library says something")
        return {"about": {"path": target, "length": length}}
    def write(self, contestant, tokens, new, ends):
        if sys.argv[1] and contestant.endswith(sys.argv[1]):
            raise RuntimeError("it cannot")
        text = [7] * (new - 1) + ([7] if not contestant.endswith("draft model 3") else [])
        timed = {"seconds": self.seconds[contestant], "first_seconds": 0.01, "first_tokens": 1}
        return {"tokens": text + ends, "forwards": new} | timed

Double().serve()
"""


@pytest.fixture
def double(entrant_of):
    """Makes a peer whose texts are made up, and whose contestants fail that end in `mistake`."""

    def make(name: str, mistake: str = "") -> Entrant:
        return entrant_of(DOUBLE, name, mistake)

    return make


def sample(speed: float, tokens: tuple[int, ...] = (1, 2, 3, 4)) -> Sample:
    seconds = len(tokens) / speed
    return Sample(tokens=list(tokens), seconds=seconds, first_seconds=seconds / 4, first_tokens=1, forwards=2)


def turn(workload: str, scale: float = 1, number: int = 0, **speeds: float) -> Turn:
    """Everybody at 100 tokens a second but those named, whose names have _ for a blank and for a dot."""
    named = {name.replace("__", ".").replace("_", " "): speed for name, speed in speeds.items()}
    assert named.keys() <= WAYS.keys()
    samples = {name: sample(scale * named.get(name, 100)) for name in WAYS}
    return Turn(workload=workload, prompt=0, round=number, prompt_tokens=5, samples=samples)


TURNS = [
    turn("code", suffix_chain=300, llama__cpp_plain=120, llama__cpp_draft_model_3=150),
    turn("code", scale=0.5, number=1, suffix_chain=320, llama__cpp_plain=120, llama__cpp_draft_model_3=160),
    turn("json", foredraft_plain=200, OpenVINO_plain=400),
]


def result(turns: list[Turn], **changes) -> dict:
    summary = summarise(turns)
    about = {"target": "tiny", "dtype": "bfloat16", "threads": 2, "hardware": {"cpu": "a CPU"}}
    beside = {"left_out": {}, "waiting_cpu_share": {LLAMA: 0.0}, "summary": summary}
    return about | beside | {"systems": compare(turns, summary)} | changes


def test_every_system_begins_with_plain_decoding_and_no_name_is_used_twice():
    assert all(next(iter(ways)).endswith("plain") for ways in SYSTEMS.values())
    assert len(WAYS) == sum(map(len, SYSTEMS.values()))


def test_the_lead_is_the_best_of_ours_over_the_best_of_all_peers():
    found = compare(TURNS, summarise(TURNS))
    code, json_ = found["workloads"]["code"], found["workloads"]["json"]
    assert (code["ours"], code["best_peer"]) == ("suffix chain", "llama.cpp draft model 3")
    assert code["lead"]["median"] == pytest.approx(2)  # round by round, though the machine was half as fast in one
    assert (json_["ours"], json_["best_peer"]) == (PLAIN, "OpenVINO plain")  # plain decoding may be the best
    assert json_["lead"]["median"] == pytest.approx(0.5)
    assert found["mean"]["lead"] == pytest.approx(1)
    assert list(found["workloads"]) == ["code", "json"]


def test_tokens_a_second_of_plain_decoding_and_of_the_best_speculation():
    found = compare(TURNS, summarise(TURNS))
    llama = found["workloads"]["code"]["systems"][LLAMA]
    assert llama["plain"] == pytest.approx((120 + 60) / 2) and llama["speculation"] == pytest.approx((150 + 80) / 2)
    assert (llama["speculation_by"], llama["best_by"]) == ("llama.cpp draft model 3", "llama.cpp draft model 3")
    assert found["workloads"]["json"]["systems"][OPENVINO]["best_by"] == "OpenVINO plain"
    assert found["mean"]["systems"][LLAMA]["plain"] == pytest.approx((90 * 100) ** 0.5)


def without(turns: list[Turn], *names: str) -> list[Turn]:
    kept = [{name: one for name, one in turn.samples.items() if name not in names} for turn in turns]
    return [
        Turn(workload=turn.workload, prompt=0, round=turn.round, prompt_tokens=5, samples=samples)
        for turn, samples in zip(turns, kept, strict=True)
    ]


def test_who_takes_no_part_is_in_no_figure(tmp_path):
    turns = without(TURNS, *OPENVINO_WAYS, "llama.cpp plain")
    shown = result(turns, left_out={OPENVINO: "its Python was not named"})
    assert list(shown["systems"]["mean"]["systems"]) == [OURS, "transformers", LLAMA]
    assert shown["systems"]["mean"]["systems"][LLAMA]["plain"] is None
    assert shown["systems"]["texts"]["like"]["llama.cpp draft model 3"] == {"foredraft_plain": 2, "own_plain": None}
    assert "OpenVINO plain" not in as_markdown(shown)
    assert "left out: OpenVINO: its Python was not named" in sentences(shown)
    pytest.importorskip("matplotlib")
    assert plot(shown, tmp_path / "generate.svg")


def test_texts_are_compared_with_ours_and_with_the_systems_own():
    turns = [turn("code"), turn("json")]
    for name in LLAMA_WAYS:
        turns[0].samples[name] = sample(100, (1, 2, 3, 5))
    turns[1].samples["llama.cpp draft model 3"] = sample(100, (1, 2, 3, 5))
    found = compare(turns, summarise(turns))["texts"]
    assert found["prompts"] == 2
    assert found["like"]["llama.cpp plain"] == {"foredraft_plain": 1, "own_plain": 2}
    assert found["like"]["llama.cpp draft model 3"] == {"foredraft_plain": 0, "own_plain": 1}
    assert found["like"]["OpenVINO plain"] == {"foredraft_plain": 2, "own_plain": 2}


def test_the_table_and_the_picture_show_every_system(tmp_path):
    shown = result(TURNS)
    tables = as_markdown(shown)
    assert "| code | 75 | 230 suffix chain | 75 | 75 assisted | 90 | 115 draft model 3 | 75 |" in tables
    assert "| 2.00 (2.00-2.00) | llama.cpp draft model 3 |" in tables
    assert "| geometric mean | 122 |" in tables
    spoken = "\n".join(sentences(shown))
    assert "foredraft's best over the best peer: 1.00, geometric mean of 2 workloads; behind it on json" in spoken
    assert "cores busy while others were timed: llama.cpp 0.000" in spoken
    pytest.importorskip("matplotlib")
    assert plot(shown, tmp_path / "generate.svg") and (tmp_path / "generate.svg").stat().st_size > 1000


def test_a_single_workload_needs_no_mean():
    assert "geometric mean |" not in as_markdown(result(TURNS[:2]))


def task(folder: Path, ends: list[int] | None = None, new: int = 4) -> Task:
    return Task(target="tiny-draft", draft="tiny-draft", folder=folder, threads=1, length=9, new=new, ends=ends or [])


def test_peers_write_and_who_writes_too_little_is_left_out(double, tmp_path):
    with at_work({LLAMA: double(LLAMA, "lookup 10")}, 1, tmp_path) as workers:
        about = load(workers[LLAMA], task(tmp_path))
        assert about["length"] == 9 and Path(about["path"], "model.safetensors").exists()
        entrants = {PLAIN: lambda tokens: sample(100)} | peer_contestants(workers, task(tmp_path))
        stage = Stage(entrants, clocks_of(workers, lambda: 0.0))
        turns = stage.play({"code": [[1], [2, 3]]}, rounds=2)
    lacking = {"llama.cpp prompt lookup 10", "llama.cpp draft model 3"}
    assert stage.left_out.keys() == lacking
    assert stage.left_out["llama.cpp prompt lookup 10"] == "llama.cpp cannot write: it cannot"
    assert stage.left_out["llama.cpp draft model 3"].endswith("wrote 3 tokens instead of 4")
    assert all(turn.samples.keys() == {PLAIN, *LLAMA_WAYS} - lacking for turn in turns)
    assert turns[0].samples["llama.cpp prompt lookup 2"].seconds == pytest.approx(1 / 2)
    assert [(turn.round, turn.prompt, turn.prompt_tokens) for turn in turns] == [
        (0, 0, 1),
        (0, 1, 2),
        (1, 0, 1),
        (1, 1, 2),
    ]
    assert set(stage.waiting.shares()) == {OURS, LLAMA}


def test_a_text_may_be_short_where_it_ends(double, tmp_path):
    with at_work({LLAMA: double(LLAMA)}, 1, tmp_path) as workers:
        ending = task(tmp_path, ends=[4], new=3)
        load(workers[LLAMA], ending)
        written = peer_contestants(workers, ending)["llama.cpp draft model 3"]([1])
    assert written.tokens == [7, 7, 4]


def test_a_peer_that_ends_leaves_the_others_going_on(tmp_path):
    def broken(tokens: list[int]) -> Sample:
        raise ContestantFailure("it ended")

    stage = Stage({"OpenVINO plain": broken, PLAIN: lambda tokens: sample(100)}, {OURS: lambda: 0.0})
    stage.warm_up({"code": [[1]]})
    assert stage.left_out == {"OpenVINO plain": "it ended"}
    assert [list(turn.samples) for turn in stage.play({"code": [[1]]}, 2)] == [[PLAIN]] * 2


def test_turns_rotate():
    order: list[str] = []

    def writer(name: str):
        return lambda tokens: order.append(name) or sample(100)

    stage = Stage({name: writer(name) for name in ("one", "two", "three")}, {OURS: lambda: 0.0})
    turns = stage.play({"code": [[1], [2]]}, rounds=2)
    assert order[::3] == ["one", "two", "three", "one"]
    assert all(list(turn.samples) == ["one", "two", "three"] for turn in turns)


def test_processes_of_contestants():
    assert [process_of(name) for name in ("llama.cpp plain", "OpenVINO plain", "hf plain", PLAIN)] == [
        LLAMA, OPENVINO, OURS, OURS,
    ]  # fmt: skip


def test_waiting_counts_the_others_alone():
    used = {"one": 0.0, "two": 0.0}
    waiting = Waiting()
    with waiting.during("one", {name: lambda name=name: used[name] for name in used}):
        used.update(one=5.0, two=0.25)
    assert waiting.cpu_seconds == {"two": 0.25} and set(waiting.seconds) == {"two"}
    assert waiting.shares()["two"] == pytest.approx(0.25 / waiting.seconds["two"])


def test_peers_whose_python_is_not_named_are_left_out():
    unnamed = "its Python was not named"
    assert find_peers({LLAMA: None, OPENVINO: None}) == ({}, {LLAMA: unnamed, OPENVINO: unnamed})
    with pytest.raises(ConfigError, match=f"^{LLAMA} cannot take part: /no/python: No such file or directory$"):
        find_peers({LLAMA: Path("/no/python"), OPENVINO: None})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--llama-python /no/python", "llama.cpp cannot take part: /no/python: No such file or directory"),
        ("--openvino-python /tmp", "OpenVINO cannot take part: /tmp: Permission denied"),
        (f"--openvino-python {sys.executable}", "name a Python that has it with --openvino-python"),
        ("--target no-such-model", "no model at 'no-such-model'"),
        ("--no-such-option 1", "no-such-option"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, message):
    code = command(f"--output {tmp_path / 'x.json'} --folder {tmp_path / 'models'} {arguments}".split())
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("error: ") and message in last and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_peers_compute_in_bf16_alone(double, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generate, "find_peers", lambda pythons: ({LLAMA: double(LLAMA)}, {}))
    code = command(f"--output {tmp_path / 'x.json'} --target tiny-draft --dtype fp32 --threads 1".split())
    assert code == 2 and "peers compute in bf16" in capsys.readouterr().err


def test_a_short_run_beside_a_double_writes_everything(double, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(generate, "find_peers", lambda pythons: ({LLAMA: double(LLAMA)}, {OPENVINO: "it is not there"}))
    output, tables = tmp_path / "new" / "generate.json", tmp_path / "generate.md"
    code = command(
        f"--output {output} --target tiny-draft --dtype bf16 --threads 1 --rounds 1 --prompts-per-workload 1 "
        f"--workloads code,json --max-new-tokens 4 --folder {tmp_path / 'models'} --markdown {tables}".split()
    )
    out, err = capsys.readouterr()
    assert code == 0, err
    record = json.loads(output.read_text())
    left_out = {"mtp 3", "eagle3 5", "dflash 7", "llama.cpp draft model 3"}
    every = [*FOREDRAFT, *TRANSFORMERS, *LLAMA_WAYS]
    assert list(record["contestants"]) == [name for name in every if name not in left_out]
    assert set(record["left_out"]) == {OPENVINO, *left_out}
    assert "tiny-draft" in record["left_out"]["mtp 3"]
    assert record["peers"][LLAMA]["length"] > 4 and set(record["waiting_cpu_share"]) == {OURS, LLAMA}
    assert list(record["systems"]["workloads"]) == ["code", "json"] and record["systems"]["mean"]["lead"] > 0
    assert tables.read_text().startswith("tokens a second") and "geometric mean of 2 workloads" in out
    assert output.with_suffix(".svg").exists() or "matplotlib is not installed" in err


def test_models_are_written_in_bf16_under_a_name_of_their_own(tmp_path):
    files = model_files("tiny-draft", tmp_path)
    module = load_plain("tiny-draft", torch.bfloat16)
    assert files.folder.name == f"tiny-draft-{digest(module)}"
    stored, state = load_file(files.folder / HUGGING_FACE / "model.safetensors"), module.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in stored.items())
    assert {"config.json", "tokenizer.json"} <= {file.name for file in (files.folder / HUGGING_FACE).iterdir()}
    next(module.parameters()).data[0, 0] += 1
    assert files.folder.name != f"tiny-draft-{digest(module)}"


def test_only_plain_llamas_are_written_as_gguf():
    plain = {"model_type": "llama", "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}}
    require_plain(plain)
    for other in ({"model_type": "qwen3"}, {"rope_parameters": {"rope_type": "llama3"}}):
        with pytest.raises(ValueError, match="only llama with default is written"):
            require_plain(plain | other)


@pytest.fixture
def llama(monkeypatch) -> Iterator[ModuleType]:
    """The worker of llama.cpp where that is not installed: its functions do nothing."""
    empty = {"llama_log_callback": lambda function: function}
    speculative = {"LlamaDraftModel": object, "LlamaPromptLookupDecoding": object}
    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(**empty))
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", SimpleNamespace(**speculative))
    for name in ("forward_llama", "generate_llama"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import generate_llama

    yield generate_llama
    for name in ("forward_llama", "generate_llama"):
        sys.modules.pop(name, None)


class Cache:
    """A model's cache, with a count of the tokens that were computed."""

    def __init__(self):
        self.tokens, self.computed = [], 0

    @property
    def filled(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> None:
        del self.tokens[length:]

    def extend(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.computed += len(tokens)


def test_a_draft_model_computes_only_what_its_cache_lacks(llama):
    class Counting(llama.ModelDrafts):
        def likeliest(self) -> tuple[int, float]:
            """One more than the token before, sure of it below 7."""
            token = self.model.tokens[-1] + 1
            return token, 0.9 if token < 7 else 0.1

    cache = Cache()
    drafter = Counting(cache, most=3, least_chance=0.5)
    assert drafter(np.array([5, 1, 2])).tolist() == [3, 4, 5]
    assert cache.tokens == [5, 1, 2, 3, 4] and cache.computed == 5  # nobody asks what follows the last
    assert drafter(np.array([5, 1, 2, 3, 6])).tolist() == []  # the second was refused; nothing sure follows
    assert cache.tokens == [5, 1, 2, 3, 6] and cache.computed == 6
    assert drafter(np.array([5, 1, 2, 3, 6, 0])).tolist() == [1, 2, 3]
    assert cache.tokens == [5, 1, 2, 3, 6, 0, 1, 2] and cache.computed == 9
    assert drafter(np.array([5, 1, 2, 3, 6, 0, 1, 2, 3, 4])).tolist() == [5, 6]  # all accepted
    assert drafter(np.array([9, 1])).tolist() == [2, 3, 4]  # another prompt
    assert cache.tokens == [9, 1, 2, 3]


def test_a_text_of_llama_ends_where_it_should(llama):
    written = llama.timed(iter([1, 2, 3, 4]), new=3, ends=[])
    assert written["tokens"] == [1, 2, 3] and 0 < written["first_seconds"] <= written["seconds"]
    assert llama.timed(iter([1, 2, 3, 4]), new=3, ends=[2])["tokens"] == [1, 2]
    assert llama.longest_draft(LLAMA_WAYS.values()) == 16
