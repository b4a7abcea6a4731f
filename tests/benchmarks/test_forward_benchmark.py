"""The benchmark of the forward: its verdicts by hand-made times, its processes by doubles, a moment of the real one."""

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import nan
from pathlib import Path

import forward_models
import forward_shapes
import forward_turns
import numpy as np
import pytest
import torch
from forward import command
from forward_contestants import (
    GGUF,
    HUGGING_FACE,
    INT8,
    LLAMA,
    MODULE,
    NATIVE,
    OPENVINO,
    TRANSFORMERS,
    ContestantFailure,
    Entrant,
    Worker,
    at_work,
    chosen,
    entrants,
)
from forward_figures import findings, judge
from forward_gguf import arranged, as_float, gguf_name, interleaved, tensors
from forward_models import Models, once
from forward_plot import as_markdown, plot, sentences
from forward_shapes import SHAPES, Shape, random_tokens, write_model, write_tokenizer
from forward_turns import BUFFER_BYTES, Notes, Plan, Run, ShapeRun, Turn, Writing, distance, memory_readers, require_fit
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from foredraft import ConfigError
from foredraft.model.loading import find_path

DOT = Shape(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=96, vocabulary=256, tied=True, head_size=32)
PLAN = Plan(contexts=(8,), rows=(1, 4), rounds=2, seconds=0, least=2, new_tokens=4, threads=1, seed=0)
DOUBLE = """
import sys
from forward_worker import serve

class Double:
    def __init__(self, name, mistake):
        self.name, self.mistake = name, mistake
    def load(self, model, threads):
        print("a library says something")
        return {"path": "native path: double" if self.mistake != "path" else "module path: no"}
    def logits(self, tokens):
        return [1.0, 2.0, 2.0] if self.mistake != "logits" else [2.0, 1.0, -2.0]
    def fill(self, tokens):
        self.filled = len(tokens)
    def steps(self, tokens):
        if self.mistake == "many" and len(tokens) > 1:
            raise RuntimeError("too many rows\\nand a second line")
        if self.mistake == "end":
            sys.exit("the end of it")
        return [len(tokens) / 1000]
    def write(self, tokens, new):
        return (new - 1) / 100, [0] * new

serve(Double(*sys.argv[1:]))
"""


def turn(shape: str = "110m", context: int = 128, rows: int = 1, number: int = 0, **milliseconds: float) -> Turn:
    """A turn of two forwards each; memory gives 20 GB/s."""
    seconds = {name.replace("llama", LLAMA): (its / 1e3, its / 1e3) for name, its in milliseconds.items()}
    return Turn(
        shape=shape, context=context, rows=rows, round=number, order=tuple(seconds), bandwidth=20e9, seconds=seconds
    )


def writing(shape: str, number: int = 0, **milliseconds: float) -> Writing:
    seconds = {name: its / 1e3 for name, its in milliseconds.items()}
    return Writing(shape=shape, round=number, order=tuple(seconds), seconds=seconds)


def floor(shape: str) -> float:
    """Milliseconds in which memory gives the weights."""
    return SHAPES[shape].weight_bytes() / 20e9 * 1e3


def verdicts(turns: list[Turn], writings: list[Writing]) -> dict[str, bool | None]:
    found = findings(turns, writings, SHAPES)["verdicts"]
    return {name: verdict and verdict["holds"] for name, verdict in found.items()}


def test_verdicts_are_the_goals_of_the_issue():
    reached = [
        turn(rows=1, native=floor("110m") / 0.8),
        turn(rows=16, native=floor("110m") / 0.76),
        turn(rows=32, native=floor("110m") / 0.8 * 1.24),
        turn("31m", rows=1, native=floor("31m") / 0.5),  # too small to be held to it
    ]
    texts = [writing("31m", native=4, OpenVINO=4.5), writing("350m", native=40, OpenVINO=41)]
    assert verdicts(reached, texts) == {"bandwidth": True, "many_rows": True, "plain": True}
    assert not verdicts([*reached, turn("350m", rows=8, native=floor("350m") / 0.74)], texts)["bandwidth"]
    assert not verdicts([*reached[:2], turn(rows=32, native=floor("110m") / 0.8 * 1.26)], texts)["many_rows"]
    assert not verdicts(reached, [*texts, writing("110m", native=10, OpenVINO=10.9)])["plain"]


def test_a_verdict_names_its_worst_cells():
    turns = [turn(context=128 + index, native=floor("110m") * (1 + index)) for index in range(5)]
    verdict = findings(turns, [], SHAPES)["verdicts"]["bandwidth"]
    assert (verdict["cells"], verdict["hold"]) == (5, 1)
    assert [row["cell"] for row in verdict["worst"]][:2] == ["110m, context 132, 1 rows", "110m, context 131, 1 rows"]
    assert len(verdict["worst"]) == 4 and verdict["worst"][0]["value"] == pytest.approx(0.2)


def test_what_was_not_measured_is_not_judged():
    found = findings([turn(rows=32, native=10)], [writing("110m", native=10)], SHAPES)
    assert found["verdicts"] == {"bandwidth": None, "many_rows": None, "plain": None}
    assert judge(findings([turn(module=10)], [], SHAPES)["cells"], []) is None


def test_ratios_are_formed_round_by_round():
    """The machine is half as fast in the second round; the ratios are not."""
    turns = [
        turn(rows=1, number=0, native=10, llama=20),
        turn(rows=32, number=0, native=12, llama=60),
        turn(rows=1, number=1, native=20, llama=40),
        turn(rows=32, number=1, native=24, llama=120),
    ]
    cells = {cell["rows"]: cell["contestants"] for cell in findings(turns, [], SHAPES)["cells"]}
    assert cells[32][NATIVE]["to_one_row"] == {"median": 1.2, "p25": 1.2, "p75": 1.2}
    assert cells[32][LLAMA]["to_one_row"]["median"] == pytest.approx(3)
    assert cells[32][LLAMA]["native_speedup"] == {"median": 5, "p25": 5, "p75": 5}
    assert cells[1][NATIVE]["seconds"] == {"median": 0.015, "p25": 0.01, "p75": 0.02}


def test_bytes_a_second_count_the_weights_once():
    cell = findings([turn(context=1024, rows=8, native=20)], [], SHAPES)["cells"][0]
    ours = cell["contestants"][NATIVE]
    assert ours["weights_per_second"] == pytest.approx(SHAPES["110m"].weight_bytes() / 0.02)
    assert ours["bandwidth_share"] == pytest.approx(ours["weights_per_second"] / 20e9)
    assert ours["bandwidth_share_with_cache"] > ours["bandwidth_share"]
    assert cell["cache_bytes"] == 12 * 2 * 4 * 64 * 2 * 1024
    assert ours["to_one_row"] is None  # no cell of one row was measured


def test_int8_reads_a_byte_a_weight_and_its_scales():
    (cell,) = findings([turn(**{NATIVE: 20, INT8: 20})], [], SHAPES)["cells"]
    bf16, int8 = (cell["contestants"][name]["weights_per_second"] for name in (NATIVE, INT8))
    assert int8 / bf16 == pytest.approx((1 + 4 / 64) / 2)


def test_who_fails_in_a_later_round_keeps_what_it_has_shown():
    turns = [turn(native=10, module=20), turn(number=1, native=10)]
    texts = [writing("110m", native=10, module=20), writing("110m", 1, native=10)]
    found = findings(turns, texts, SHAPES)
    assert found["cells"][0]["contestants"][MODULE]["native_speedup"]["median"] == 2
    assert found["texts"][0]["contestants"][MODULE]["native_speedup"]["median"] == 2


def result(turns: list[Turn], writings: list[Writing], **changes) -> dict:
    beside = {"left_out": {}, "logit_distances": {"110m": {NATIVE: 0.01}}, "waiting_cpu_share": {NATIVE: 0.0}}
    return beside | {"threads": 2, "new_tokens": 64} | findings(turns, writings, SHAPES) | changes


def test_the_tables_and_the_picture_show_every_contestant(tmp_path):
    turns = [turn(rows=rows, native=10 + rows / 8, OpenVINO=12 + rows) for rows in (1, 8, 32)]
    turns += [turn(context=1024, rows=rows, native=12 + rows / 8, OpenVINO=14 + rows) for rows in (1, 8, 32)]
    shown = result(turns, [writing("110m", native=10, OpenVINO=12)], left_out={LLAMA: "it is not there"})
    tables = as_markdown(shown)
    assert "110m, context 1024: 200 MB of weights, memory gives 20.0 GB/s:" in tables
    assert "| 32 | OpenVINO | 44.00 (44.00-44.00) | 4.5 | 23% | 3.38 | 3.14 |" in tables
    assert "| 110m | OpenVINO | 12.00 (12.00-12.00) | 83 | 1.20 |" in tables
    spoken = "\n".join(sentences(shown))
    assert "left out: llama.cpp: it is not there" in spoken and "native 0.010" in spoken
    assert "holds: native decodes plainly at 1.1 of the speed of OpenVINO GenAI or more" in spoken
    assert "does not hold: 32 rows cost native at most 1.25 of one row: 0 of 2; the worst:" in spoken
    pytest.importorskip("matplotlib")
    assert plot(shown, tmp_path / "forward.svg") and (tmp_path / "forward.svg").stat().st_size > 1000


def test_without_the_native_path_there_is_no_verdict():
    assert sentences(result([turn(module=10)], []))[-1] == "no verdict: 'native' took no part"


def test_memory_is_read_by_every_way_there_is(monkeypatch):
    assert BUFFER_BYTES >= 1 << 28  # of which no cache holds much
    monkeypatch.setattr(forward_turns, "BUFFER_BYTES", 1 << 22)
    ways = memory_readers(1)
    assert "torch" in ways and all(0 < read() < 1e13 for read in ways.values())


@pytest.mark.parametrize("shape", [DOT, replace(DOT, tied=False), replace(DOT, heads=4, kv_heads=2, layers=3)])
def test_sizes_of_a_shape_are_those_of_the_module(shape):
    module = LlamaForCausalLM(shape.config())
    assert shape.parameters == sum(parameter.numel() for parameter in module.parameters())
    embedding = module.get_input_embeddings().weight.numel()
    assert shape.weight_bytes() == 2 * (shape.parameters - (0 if shape.tied else embedding))


def test_the_shapes_are_as_large_as_their_names_say():
    for name, shape in SHAPES.items():
        assert shape.parameters / 1e6 == pytest.approx(int(name.removesuffix("m")), rel=0.12)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    models = Models("dot", DOT, 0, tmp_path_factory.mktemp("models"))
    assert models.prepare([]) == {}
    return models


def test_models_are_written_once_and_told_apart(models, tmp_path):
    weights = models.folder / HUGGING_FACE / "model.safetensors"
    before = weights.stat().st_mtime_ns
    assert models.prepare([]) == {} and weights.stat().st_mtime_ns == before
    parent = models.folder.parent
    others = [Models("dot", DOT, 1, parent), Models("dot", replace(DOT, layers=3), 0, parent)]
    assert len({models.folder, *(other.folder for other in others)}) == 3

    def broken(place: Path) -> None:
        place.mkdir()
        raise OSError("the disk is full")

    with pytest.raises(OSError):
        once(tmp_path / "model", broken)
    assert not (tmp_path / "model").exists()
    once(tmp_path / "model", Path.mkdir)
    assert (tmp_path / "model").is_dir()


def test_a_format_that_cannot_be_written_leaves_its_reader_out(models, monkeypatch):
    monkeypatch.setitem(forward_models.SCRIPTS, GGUF, "no_such_script.py")
    left_out = models.prepare([Entrant(name=LLAMA, command=[sys.executable], model=GGUF)])
    assert list(left_out) == [LLAMA] and left_out[LLAMA].startswith("no_such_script.py failed: ")
    assert not (models.folder / GGUF).exists()


def test_the_reference_is_the_model_in_fp32(models):
    reference = models.reference()
    module = LlamaForCausalLM.from_pretrained(models.folder / HUGGING_FACE, dtype=torch.float32)
    with torch.inference_mode():
        logits = module(torch.tensor([reference["tokens"]])).logits[0, -1]
    assert torch.allclose(logits, torch.tensor(reference["logits"]), atol=1e-4)
    assert distance(logits.tolist(), reference) < 1e-4
    assert distance((2 * logits).tolist(), reference) == pytest.approx(1, abs=1e-3)
    with pytest.raises(ContestantFailure, match="256"):
        distance([0.0], reference)


def test_weights_are_read_as_the_bits_they_are(models):
    file = models.folder / HUGGING_FACE / "model.safetensors"
    stored = {name: torch.from_numpy(as_float(bits).copy()) for name, bits in tensors(file)}
    assert stored.keys() == load_file(file).keys()
    assert all(torch.equal(stored[name], tensor.float()) for name, tensor in load_file(file).items())


def test_only_bf16_is_written_as_gguf(tmp_path):
    LlamaForCausalLM(DOT.config()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="F32; only BF16"):
        list(tensors(tmp_path / "model.safetensors"))


def test_names_of_gguf():
    assert gguf_name("model.embed_tokens.weight") == "token_embd.weight"
    assert gguf_name("model.layers.11.self_attn.o_proj.weight") == "blk.11.attn_output.weight"
    assert gguf_name("model.layers.0.post_attention_layernorm.weight") == "blk.0.ffn_norm.weight"


def test_neighbours_rotate_in_gguf_as_halves_do_in_transformers():
    """Products of rotated queries and keys are the same, which is all that attention sees of their order."""
    heads, size, positions = 2, 8, torch.arange(5)
    weights = torch.randn(2, heads * size, 16, dtype=torch.float64)
    states = torch.randn(5, 16, dtype=torch.float64)
    angles = positions[:, None] * 10000.0 ** (-torch.arange(0, size, 2) / size)  # [5, size / 2]
    halves = torch.cat([angles, angles], -1)
    query, key = (split(states @ weight.T, heads) for weight in weights)
    query, key = apply_rotary_pos_emb(query[None], key[None], halves.cos()[None], halves.sin()[None])
    ours = (split(states @ torch.from_numpy(interleaved(weight.numpy(), heads)).T, heads) for weight in weights)
    query2, key2 = (rotated_neighbours(x, angles) for x in ours)
    assert torch.allclose(query[0] @ key[0].mT, query2 @ key2.mT)


def split(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """[T, heads * size] as [heads, T, size]."""
    return rows.unflatten(-1, (heads, -1)).transpose(0, 1)


def rotated_neighbours(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(-2)


def test_only_queries_and_keys_are_rearranged():
    config = {"num_attention_heads": 2, "num_key_value_heads": 1}
    matrix = np.arange(8 * 3).reshape(8, 3)
    assert arranged("model.layers.0.self_attn.q_proj.weight", matrix, config)[:, 0].tolist() == [
        0, 6, 3, 9, 12, 18, 15, 21,
    ]  # fmt: skip
    assert arranged("model.layers.0.self_attn.k_proj.weight", matrix, config)[:4, 0].tolist() == [0, 12, 3, 15]
    assert arranged("model.layers.0.self_attn.v_proj.weight", matrix, config) is matrix


def test_gguf_holds_what_was_stored(models, tmp_path):
    gguf = pytest.importorskip("gguf")
    from forward_gguf import main

    main(models.folder / HUGGING_FACE, tmp_path / GGUF)
    read = gguf.GGUFReader(tmp_path / GGUF)
    assert {"blk.1.attn_q.weight", "token_embd.weight", "output_norm.weight"} <= {one.name for one in read.tensors}


@pytest.fixture
def double(entrant_of):
    """Makes entrants whose answers are made up."""

    def make(name: str, mistake: str = "") -> Entrant:
        return entrant_of(DOUBLE, name, name, mistake)

    return make


@contextmanager
def started(entrant: Entrant, folder: Path) -> Iterator[Worker]:
    with at_work({entrant.name: entrant}, 1, folder) as workers:
        yield workers[entrant.name]


def test_a_worker_answers_line_by_line_whatever_its_libraries_print(double, tmp_path):
    with started(double("one", "many"), tmp_path) as worker:
        assert worker.ask("load", model="m", threads=1) == {"about": {"path": "native path: double"}}
        with pytest.raises(ContestantFailure, match="^one cannot measure: too many rows$"):
            worker.ask("measure", tokens=[1, 2], seconds=0, least=1)
        assert worker.ask("measure", tokens=[1], seconds=0, least=3) == {"seconds": [0.001] * 3}
        assert worker.ask("write", tokens=[1], new=3) == {"seconds": 0.02, "tokens": [0, 0, 0]}
        with pytest.raises(ContestantFailure, match="cannot dance"):
            worker.ask("dance")
        assert worker.cpu_seconds() > 0
    assert worker.process.returncode == 0
    worker.stop()


def test_a_worker_that_ends_says_why(double, tmp_path):
    with started(double("one", "end"), tmp_path) as worker:
        for _ in range(2):
            with pytest.raises(ContestantFailure, match="(?s)one ended with exit code 1: .*the end of it"):
                worker.ask("measure", tokens=[1], seconds=0, least=1)
    broken = Entrant(name="two", command=[sys.executable, "-c", "raise SystemExit('no')"], model="")
    with pytest.raises(ContestantFailure, match="(?s)two ended with exit code 1: .*no"), started(broken, tmp_path):
        pass


class Fixed:
    """Models of which only the reference is ever read."""

    shape = DOT

    def of(self, entrant: Entrant) -> str:
        return entrant.model

    def reference(self) -> dict:
        return {"tokens": [1], "logits": [1.0, 2.0, 2.0]}


def played(every: list[Entrant], folder: Path, plan: Plan = PLAN) -> tuple[list[Turn], list[Writing], Notes]:
    notes = Notes()
    with at_work({entrant.name: entrant for entrant in every}, 1, folder) as workers:
        run = Run(workers, plan, notes)
        run.read_memory = {"slow": lambda: 1e9, "fast": lambda: 2e9}
        turns = list(ShapeRun(run, "dot", Fixed()).turns())
    return [t for t in turns if isinstance(t, Turn)], [t for t in turns if isinstance(t, Writing)], notes


def test_turns_rotate_and_bandwidth_is_the_fastest_way(double, tmp_path):
    turns, writings, notes = played([double(name) for name in ("one", "two", "three")], tmp_path)
    assert [(t.round, t.rows) for t in turns] == [(0, 1), (0, 4), (1, 1), (1, 4)]
    assert [t.order[0] for t in turns] == ["one", "two", "two", "three"]
    assert all(list(t.seconds) == ["one", "two", "three"] for t in turns)
    assert turns[1].seconds["two"] == [0.004] * 2 and {t.bandwidth for t in turns} == {2e9}
    assert notes.bandwidths == {"slow": [1e9] * 2, "fast": [2e9] * 2}
    assert [w.order[0] for w in writings] == ["one", "two"]
    assert writings[0].seconds == dict.fromkeys(("one", "two", "three"), pytest.approx(0.01))
    assert set(notes.waiting.shares()) == {"one", "two", "three"} and notes.left_out == {}


def test_who_fails_is_left_out_and_the_others_go_on(double, tmp_path):
    mistakes = ("", "many", "end", "logits", "path")
    every = [double(mistake or "good", mistake) for mistake in mistakes] + [double(NATIVE, "path")]
    turns, writings, notes = played(every, tmp_path)
    assert [list(t.seconds) for t in turns] == [["good", "many", "path"], *[["good", "path"]] * 3]
    assert [list(w.seconds) for w in writings] == [["good", "path"]] * 2
    assert set(notes.left_out) == {"dot: many", "dot: end", "dot: logits", f"dot: {NATIVE}"}
    assert "its logits are 1.4 off" in notes.left_out["dot: logits"]
    assert notes.left_out[f"dot: {NATIVE}"] == "it runs on the module path: no"


def test_nobody_left_is_no_disaster(double, tmp_path):
    turns, writings, notes = played([double("one", "logits")], tmp_path)
    assert all(t.seconds == {} for t in turns) and "dot: one" in notes.left_out
    found = findings(turns, writings, {"dot": DOT})
    assert found["verdicts"] is None and found["cells"][0]["contestants"] == {}


def test_logits_that_are_no_numbers_do_not_fit():
    require_fit(MODULE, {"path": "packed path"}, 0.02)
    for bad in (nan, 0.5):
        with pytest.raises(ContestantFailure, match="its logits are"):
            require_fit(MODULE, {"path": "packed path"}, bad)


def test_contestants_without_their_python_are_left_out():
    every = entrants("/no/such/python", sys.executable, "auto")
    assert list(every) == [NATIVE, INT8, MODULE, TRANSFORMERS, LLAMA, OPENVINO]
    here, left_out = chosen(every, [MODULE, LLAMA])
    assert list(here) == [MODULE] and left_out == {LLAMA: "/no/such/python: No such file or directory"}
    lacking = replace(every[LLAMA], command=[sys.executable], needs=["no_such_module"])
    assert lacking.missing() == (
        "ModuleNotFoundError: No module named 'no_such_module'; name a Python that has it with --llama-python"
    )
    with pytest.raises(ConfigError, match="contestant 'vllm' is not known; known: native, native int8, module"):
        chosen(every, ["vllm"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--contestants vllm", "contestant 'vllm' is not known"),
        ("--contestants llama.cpp --llama-python /no/python", "contestant 'llama.cpp' cannot take part: /no/python"),
        ("--shapes 7b", "--shapes has .*7b.*; known: 31m, 110m, 350m"),
        ("--rows 0", "--rows is 0"),
        ("--rows 513", "--rows is 513"),
        ("--rows 8 8", "names a value twice"),
        ("--contexts 2000 --rows 64", "--contexts is 2000; it must be a whole number from 1 to 1984"),
        ("--rounds 0", "--rounds is 0"),
        ("--least 0", "--least is 0"),
        ("--new-tokens 1", "--new-tokens is 1"),
        ("--threads 0", "threads is 0"),
        ("--native neon", "native is 'neon'"),
        ("--no-such-option 1", "no-such-option"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, message):
    code = command(f"-o {tmp_path / 'x.json'} --folder {tmp_path / 'models'} {arguments}".split())
    out, err = capsys.readouterr()
    last = err.splitlines()[-1]
    assert (code, out) == (2, "") and last.startswith("error: ") and "Traceback" not in err
    assert not list(tmp_path.iterdir())
    assert re.search(message, last)


def test_a_short_run_writes_everything(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(forward_shapes.SHAPES, "dot", DOT)
    output, tables = tmp_path / "new" / "forward.json", tmp_path / "forward.md"
    code = command(
        f"-o {output} --shapes dot --contestants module,transformers --contexts 16 200 --rows 1 5 --rounds 1 "
        f"--seconds 0 --least 2 --new-tokens 3 --threads 1 --folder {tmp_path / 'models'} --markdown {tables}".split()
    )
    out, err = capsys.readouterr()
    assert code == 0, err
    record = json.loads(output.read_text())
    assert {"command", "commit", "versions", "hardware", "seed", "threads", "shapes"} <= set(record)
    assert record["complete"] and record["verdicts"] is None and record["left_out"] == {}
    assert [(cell["context"], cell["rows"]) for cell in record["cells"]] == [(16, 1), (16, 5), (200, 1), (200, 5)]
    assert all(list(cell["contestants"]) == [MODULE, TRANSFORMERS] for cell in record["cells"])
    assert [turn["seconds"][MODULE]["forwards"] for turn in record["turns"]] == [2] * 4
    assert list(record["texts"][0]["contestants"]) == [MODULE, TRANSFORMERS]
    assert 0 < max(record["logit_distances"]["dot"].values()) < 0.05  # they compute in bf16
    assert "path" in record["contestants"]["dot"][MODULE]
    assert tables.read_text().startswith("dot, context 16") and "no verdict: 'native' took no part" in out
    assert output.with_suffix(".svg").exists() or "matplotlib is not installed" in err


def test_the_tokenizer_knows_every_token(tmp_path):
    write_tokenizer(9000, tmp_path)
    tokenizer, embedded = (AutoTokenizer.from_pretrained(path) for path in (tmp_path, find_path("tiny")))
    assert len(tokenizer) == 9000 > len(embedded)
    assert tokenizer.encode("def add(a, b):\n") == embedded.encode("def add(a, b):\n")


@pytest.mark.parametrize("name", [MODULE, TRANSFORMERS, NATIVE, INT8])
def test_a_forward_leaves_the_cache_as_it_was(models, name):
    """Whatever was computed behind it, a text that begins with what the cache holds goes on in the same way."""
    contestant = made(name)
    contestant.load(str(models.folder / HUGGING_FACE), 1)
    tokens = random_tokens(DOT, 40, 3)
    wanted = torch.tensor(contestant.logits(tokens[:21]))
    contestant.fill(tokens[:20])
    for rows in (1, 8, 16):
        assert all(seconds > 0 for seconds in contestant.steps(tokens[24 : 24 + rows]))
    again = torch.as_tensor(contestant.forward(tokens[20:21])).reshape(-1).float()
    assert torch.dist(again, wanted) < 0.05 * wanted.norm()
    seconds, text = contestant.write(tokens[:20], 4)
    assert seconds > 0 and len(text) == 4
    contestant.fill(tokens[:5])  # the cache can be used after a text


def made(name: str):
    if name == TRANSFORMERS:
        from forward_transformers import Transformers

        return Transformers()
    from forward_foredraft import Foredraft

    if name == MODULE:
        return Foredraft("off", "bf16")
    pytest.importorskip("foredraft_native")
    return Foredraft("auto", "int8" if name == INT8 else "bf16")


def test_write_model_is_the_same_for_a_seed(tmp_path):
    for name, seed in (("one", 5), ("two", 5), ("three", 6)):
        write_model(DOT, seed, tmp_path / name)
    one, two, three = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two", "three"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert not torch.equal(one["model.norm.weight"], three["model.norm.weight"])
