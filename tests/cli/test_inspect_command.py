import json

import pytest

from foredraft.cli import cost_report
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.cost_store import stored_costs
from foredraft.engine.step_costs import DraftCost, ForwardCost, StepCosts
from foredraft.model.target import load_target

PLACE = ("--dtype", "fp32", "--threads", 1, "--cache-tokens", 1024)


def test_inspect_tells_the_shape_and_what_fits(run, model):
    code, out, err = run("inspect", model, "--json", "--dtype", "fp32", "--cache-tokens", 50)
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert report["architecture"] == "LlamaForCausalLM"
    assert [report[key] for key in ("layers", "heads", "kv_heads", "key_sizes")] == [2, 4, 2, [8]]
    assert report["vocabulary_size"] == report["vocabulary_rows"] == 257
    assert report["stop_tokens"] == {"0": "</s>"}
    assert report["cache_bytes_per_token"] == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, size, bytes
    assert report["cache_tokens"] == 50
    assert report["feature_layers"] is None
    fitting = {name for name, reason in report["drafters"].items() if reason is None}
    assert {"ngram", "none", "suffix"} <= fitting and not fitting & {"draft_model", "eagle3", "medusa"}
    assert "needs a draft model" in report["drafters"]["draft_model"]


def test_inspect_tries_a_draft_model(run, model, other_vocabulary):
    _, out, _ = run("inspect", model, "--json", "--draft-model", model)
    assert json.loads(out)["drafters"]["draft_model"] is None
    _, out, _ = run("inspect", model, "--json", "--draft-model", other_vocabulary)
    assert json.loads(out)["drafters"]["draft_model"] is None  # it drafts through text
    _, out, _ = run("inspect", model, "--json", "--draft-model", "/no/such/model")
    assert "/no/such/model" in json.loads(out)["drafters"]["draft_model"]


def test_inspect_prints_a_table(run, model):
    code, out, err = run("inspect", model)
    assert (code, err) == (0, "")
    assert all(word in out for word in ("LlamaForCausalLM", "257", "'</s>' (0)", "ngram", "a token"))


def test_inspect_tells_attention_heads_from_trained_heads(run):
    code, out, _ = run("inspect", "tiny", "--dtype", "fp32", "--cache-tokens", 64)
    assert code == 0
    lines = out.splitlines()
    assert any(line.startswith("heads ") and "8, of keys and values 4" in line for line in lines)
    assert any(line.startswith("trained heads ") and "tiny-eagle3: eagle3, embedded" in line for line in lines)


SMALL = ("--dtype", "fp32", "--cache-tokens", 64, "--device", "cpu")
HEADS = ("eagle3", "medusa", "mtp", "dflash")


def paths(run, *arguments: object) -> dict[str, str]:
    _, out, _ = run("inspect", *arguments, *SMALL, "--json")
    return json.loads(out)["drafter_paths"]


def test_inspect_tells_by_which_path_heads_run(run, monkeypatch):
    pytest.importorskip("foredraft_native")
    shown = paths(run, "tiny", "--native", "portable")
    assert {shown[head] for head in HEADS} == {"native path: portable kernels"}
    assert not shown.keys() & {"ngram", "none", "suffix", "eagle", "draft_model"}
    monkeypatch.setenv("COLUMNS", "160")
    _, out, _ = run("inspect", "tiny", "--native", "portable", *SMALL)
    lines = {line[: line.find("  ")]: line for line in out.splitlines()}
    assert all("fits; native path: portable kernels" in lines[f"drafter {head}"] for head in HEADS)
    assert lines["drafter ngram"].split() == ["drafter", "ngram", "fits"]


def test_inspect_tells_why_heads_do_not_take_the_native_path(run):
    shown = paths(run, "tiny", "--native", "off")
    assert {shown[head] for head in HEADS} == {"torch: its target does not take the native path"}


def test_inspect_tells_by_which_path_a_draft_model_runs(run, model, other_vocabulary):
    for drafter in (model, other_vocabulary):
        shown = paths(run, model, "--native", "off", "--draft-model", drafter)
        assert shown["draft_model"].endswith("; native kernels are switched off")


@pytest.fixture
def quick(monkeypatch, tmp_path) -> None:
    """Measuring for a moment, kept for this test alone."""
    monkeypatch.setattr(cost_report, "SECONDS", 0.2)
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))


@pytest.mark.usefixtures("quick")
def test_costs_are_measured_shown_and_kept(run, model):
    code, out, err = run("inspect", model, *PLACE, "--json", "--costs", "--drafter", "ngram", "--tree-size", 9)
    costs = json.loads(out)["costs"]
    assert (code, err) == (0, "")
    sizes = {(line["rows"], line["requests"], line["context"]) for line in costs["forwards"]}
    assert {(1, 1, 64), (8, 1, 64)} <= sizes and costs["context"] == 64
    plain = [line for line in costs["forwards"] if line["rows"] == line["requests"]]
    assert plain and all(line["plain_steps"] == 1 for line in plain)
    (drafter,) = costs["drafters"]
    assert (drafter["name"], drafter["nodes"], drafter["calls"][0]["requests"]) == ("ngram 5 tree 9x3", 9, 1)
    plain_steps = drafter["calls"][0]["plain_steps"]
    assert drafter["break_even"] > plain_steps or drafter["break_even"] == pytest.approx(plain_steps)
    known = stored_costs(load_target(model, dtype="fp32", threads=1, cache_tokens=1024))
    assert known.draft_seconds("ngram 5 tree 9x3", 1) == drafter["calls"][0]["seconds"]


@pytest.mark.usefixtures("quick")
def test_costs_of_every_way_that_auto_would_choose_from(run, model):
    _, out, _ = run("inspect", model, *PLACE, "--json", "--costs", "--draft-model", model)
    methods = {line["name"].split()[0] for line in json.loads(out)["costs"]["drafters"]}
    assert {"suffix", "draft_model"} <= methods


@pytest.mark.usefixtures("quick")
def test_costs_are_printed_as_tables(run, model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, err = run("inspect", model, *PLACE, "--costs", "--drafter", "suffix", "--num-speculative-tokens", 7)
    assert (code, err) == (0, "")
    assert all(words in out for words in ("LlamaForCausalLM", "64 positions", "suffix 7", "accepted a step"))
    first_words = {line.split()[0] for line in out.splitlines() if line.strip()}
    assert {"1", "8"} <= first_words


def test_the_report_counts_in_plain_steps():
    times = {(1, 1): 1.0, (5, 1): 1.5, (4, 4): 2.0, (8, 4): 3.0}
    forwards = [ForwardCost(rows=r, requests=n, context=64, seconds=s) for (r, n), s in times.items()]
    calls = (DraftCost(requests=1, seconds=0.25), DraftCost(requests=4, seconds=1.0))
    options = [SpeculationConfig(method=method, num_speculative_tokens=4) for method in ("none", "medusa", "mtp")]
    report = cost_report.reported(StepCosts(forwards=tuple(forwards), drafts={"medusa 4": calls}), options)
    assert [line.plain_steps for line in report.forwards] == [1.0, 1.5, 1.0, 1.5]
    medusa, mtp = report.drafters
    assert [(call.requests, call.plain_steps) for call in medusa.calls] == [(1, 0.25), (4, 0.5)]
    assert medusa.break_even == pytest.approx(0.25 + 1.5 - 1)
    assert (mtp.name, mtp.calls, mtp.break_even) == ("mtp 4", [], None)


def test_nothing_is_measured_unless_asked(run, model, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    _, out, _ = run("inspect", model, *PLACE, "--json")
    assert "costs" not in json.loads(out) and not (tmp_path / "costs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--drafter", "ngram"], "--drafter says what --costs is to measure"),
        (["--tree-size", "4"], "--tree-size says what --costs is to measure"),
        (["--costs", "--drafter", "medusa"], "medusa needs a head"),
        (["--costs", "--drafter", "ngrm"], "'ngram'"),
        (["--costs", "--tree-size", "1000"], "tree_size is 1000"),
    ],
)
def test_mistakes_about_costs(refused, model, arguments, said):
    assert said in refused("inspect", model, *PLACE, *arguments)
