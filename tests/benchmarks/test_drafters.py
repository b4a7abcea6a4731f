"""The benchmark of drafters, run for a moment on a random model."""

import json

import pytest
from byte_model import save_byte_model
from drafter_contestants import DRAFTERS, configs_of, make_contestants
from drafter_markdown import as_markdown
from drafters import changes_in, main, means_over, names_in

from foredraft import ConfigError, Engine
from foredraft.core.speculation_config import OFF
from foredraft.evaluation.report import Report
from foredraft.evaluation.turns import PLAIN

SHORT = {"prompts_per_workload": 1, "max_new_tokens": 8, "rounds": 1, "threads": 1, "cache_tokens": 512}


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return save_byte_model(tmp_path_factory.mktemp("bytes"))


def test_every_contestant_is_a_valid_config():
    configs = configs_of([], {}, "some-draft")
    assert list(configs) == list(DRAFTERS)
    assert configs["draft model"].model == "some-draft"
    assert {config.method for config in configs.values()} >= {"medusa", "eagle3", "mtp", "dflash", "suffix"}
    for method in ("draft model", "medusa", "eagle3", "mtp", "dflash"):
        assert configs[method].tree_size == 0 and configs[f"{method} tree"].tree_size >= 15


def test_settings_change_and_add_contestants():
    changes = changes_in('{"eagle3 tree": {"tree_size": 24}, "wide": {"method": "ngram", "tree_size": 8}}')
    configs = configs_of(names_in("eagle3 tree, wide"), changes, "d")
    assert [(config.method, config.tree_size) for config in configs.values()] == [("eagle3", 24), ("ngram", 8)]
    assert configs["eagle3 tree"].num_speculative_tokens == DRAFTERS["eagle3 tree"]["num_speculative_tokens"]


@pytest.mark.parametrize(
    ("names", "changes", "message"),
    [
        ("eagle9", "{}", "contestant 'eagle9' is not known"),
        ("", '{"ngram": {"tree_sise": 3}}', "contestant 'ngram': .*tree_sise"),
        ("", '{"new": {"method": "eagle9"}}', "contestant 'new' has method 'eagle9'"),
        ("", '{"new": {}}', "contestant 'new' has method 'auto'"),
        ("", "[1]", "--settings is"),
        ("", "{", "--settings is"),
    ],
)
def test_mistakes_are_named(names, changes, message):
    with pytest.raises(ConfigError, match=message):
        configs_of(names_in(names), changes_in(changes), "d")


def test_means_are_over_what_was_run():
    assert means_over(["code", "json", "chat"]) == {
        "mean of code, json": ("code", "json"),
        "mean of all": ("code", "json", "chat"),
    }
    assert means_over(["code", "maths"]) == {"mean of code, maths": ("code", "maths")}
    assert means_over(["code"]) == {}
    assert means_over(["chat", "qa"]) == {"mean of all": ("chat", "qa")}


def test_each_drafter_has_an_engine_of_its_own_and_missing_heads_are_left_out(model):
    def load() -> Engine:
        return Engine.from_pretrained(model, dtype="fp32", device="cpu", cache_tokens=512, max_batch=1, speculation=OFF)

    names = ["ngram", "draft model", "draft model tree", "eagle3", "medusa"]
    contestants, left_out = make_contestants(configs_of(names, {}, model), load, together=False)
    assert list(contestants) == [PLAIN, "ngram", "draft model", "draft model tree"]
    assert list(left_out) == ["eagle3", "medusa"]
    assert contestants["draft model"].engine is contestants["draft model tree"].engine
    assert len({id(contestant.engine) for contestant in contestants.values()}) == 3
    together, _ = make_contestants(configs_of(names, {}, model), load, together=True)
    assert len({id(contestant.engine) for contestant in together.values()}) == 1


def test_a_short_run_writes_everything(model, tmp_path, capsys):
    output, tables = tmp_path / "new" / "drafters.json", tmp_path / "drafters.md"
    code = main(
        output=output,
        target=model,
        draft_model=model,
        workloads="code,json,chat",
        settings='{"draft model": {"num_speculative_tokens": 2}}',
        dtype="fp32",
        markdown=tables,
        **SHORT,
    )
    out, err = capsys.readouterr()
    assert code == 0 and "changed the text: none" in out
    assert "left out: eagle3: " in err
    record = json.loads(output.read_text())
    report = Report.from_record(record)
    assert list(report.contestants) == [PLAIN, "ngram", "suffix", "draft model", "draft model tree"]
    assert set(record["left_out"]) == set(DRAFTERS) - set(report.contestants)
    assert {"command", "commit", "versions", "hardware", "seed", "threads", "prompts_sha256"} <= set(record)
    assert record["dtype"] == "float32" and record["contestants"]["draft model"]["num_speculative_tokens"] == 2
    # A draft model that is the target itself is never wrong.
    row = report.row("mean of code, json", 1.0, "draft model")
    assert row.acceptance == pytest.approx((1, 1)) and row.tau > 2
    assert tables.read_text() == as_markdown(report)
    assert "| draft model | 100% | 100 100 |" in tables.read_text()
    assert output.with_suffix(".svg").exists() or "matplotlib is not installed" in err


def test_a_named_contestant_without_its_head_is_refused(model, tmp_path, capsys):
    code = main(output=tmp_path / "x.json", target=model, contestants="eagle3", workloads="code", **SHORT)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("error: contestant 'eagle3' cannot take part: ")
    assert "Traceback" not in err
    assert not (tmp_path / "x.json").exists()
