"""`foredraft train` from files to a drafter that drafts, and every way it says no."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_data import END, chat, chat_tokenizer, save_target, write_lines

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.cli.main import main
from foredraft.cli.method_flags import options_for, owners
from foredraft.core.errors import ConfigError
from foredraft.core.speculation_config import OFF
from foredraft.training import run_log
from foredraft.training.methods.method import BUILT_IN, find_method

PLAIN = {"--train-dtype": "fp32", "--steps": 3, "--held-out": 0.3, "--batch-size": 4, "--report-prompts": 0}
OPTIONS = {
    "eagle3": {"--draft-vocabulary": 64, "--ttt-steps": 2},
    "eagle1": {"--measured-steps": 2},
    "medusa": {"--medusa-heads": 2, "--draft-vocabulary": 64},
    "mtp": {"--mtp-steps": 2},
    "dflash": {"--block-size": 3, "--anchors": 4, "--layers": 1, "--feature-layers": 2},
    "draft": {"--hidden-size": 16, "--layers": 1, "--heads": 2},
}


@pytest.fixture(scope="module")
def target(tmp_path_factory) -> str:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    words = ("the cat sat", "on the mat", "that is that", "said the hat", "the hat and the cat")
    lines = [chat(f"{word} {other}?", f"{other}, {word}.") for word in words for other in words]
    return write_lines(tmp_path_factory.mktemp("data") / "chats.jsonl", *lines)


@pytest.fixture
def train(target, data, tmp_path, capsys):
    """Runs `foredraft train` in this process: its exit code, standard output and standard error."""

    def command(method: str, *arguments: object, output: Path | None = None) -> tuple[int, str, str]:
        flags = {"--target": target, "--data": data, "--output": output or tmp_path / "out", **PLAIN, **OPTIONS[method]}
        kept = [part for flag, value in flags.items() if flag not in arguments for part in (flag, value)]
        try:
            code = main([str(part) for part in ("train", method, *kept, *arguments)])
        except SystemExit as leaving:
            code = leaving.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*.safetensors")))


@pytest.mark.parametrize("method", BUILT_IN)
def test_a_trained_drafter_drafts(train, target, tmp_path, method):
    code, out, err = train(method, "--report-prompts", "1", "--report-tokens", "6")
    assert code == 0, err
    assert "3 steps" in out and "expected tau" in out and "no report" not in out
    folder = tmp_path / "out"
    assert (folder / "drafter-report.json").exists() and (folder / "config.json").exists()
    drafter = {"eagle1": "eagle", "draft": "draft_model"}.get(method, method)
    plain = Engine.from_pretrained(target, dtype="fp32", cache_tokens=256, speculation=OFF)
    speculation = SpeculationConfig(method=drafter, model=str(folder), num_speculative_tokens=2)
    engine = Engine(plain.target, speculation=speculation)
    params = SamplingParams(max_new_tokens=12, ignore_eos=True)
    prompt = chat_tokenizer()("the cat sat on")["input_ids"]
    expected, output = (each.generate([prompt], params)[0] for each in (plain, engine))
    assert output.token_ids == expected.token_ids
    assert output.statistics.drafted > 0


def test_a_run_says_what_it_did(train, data, tmp_path):
    train("eagle3", "--evaluate-steps", "2")
    folder = tmp_path / "out"
    facts = json.loads((folder / "provenance.json").read_text())
    assert facts["order"]["options"]["draft_vocabulary"] == 64 and facts["order"]["training"]["steps"] == 3
    assert list(facts["data"]) == [str(data)] and len(facts["data"][str(data)]) == 64
    assert facts["steps"] == 3 and facts["samples"]["samples"] == 25 and facts["versions"]["torch"]
    assert facts["held_out"]["expected_tau"] >= 1 and len(facts["held_out"]["agreement"]) == 2
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    assert [(record["kind"], record["step"]) for record in records] == [
        ("step", 1),
        ("step", 2),
        ("held_out", 2),
        ("step", 3),
        ("held_out", 3),
    ]
    assert all({"loss", "agreement", "expected_tau"} <= record.keys() for record in records)
    assert not list(folder.rglob("*.tmp"))


def test_medusa_heads_carry_their_measured_accuracies(train, tmp_path):
    train("medusa")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [len(ranks) for ranks in config["head_accuracies"]] == [10, 10]
    assert all(0 <= share <= 1 for ranks in config["head_accuracies"] for share in ranks)


def test_a_stopped_run_goes_on_by_the_same_command(train, tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert train("dflash", output=whole)[0] == 0
    take = run_log.JsonLines.take

    def stopping(self, record: dict) -> None:
        take(self, record)
        if record["step"] == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(run_log.JsonLines, "take", stopping)
    code, out, _ = train("dflash", output=cut)
    assert code == 128 + signal.SIGTERM and "the same command goes on from there" in out
    assert not (cut / "provenance.json").exists()
    monkeypatch.undo()
    code, out, _ = train("dflash", output=cut)
    assert code == 0 and "3 steps" in out
    one, other = weights(whole), weights(cut)
    assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    code, out, _ = train("dflash", output=cut)
    assert code == 0 and "holds this run, finished" in out


def test_another_configuration_in_the_same_folder_is_refused(train, tmp_path):
    assert train("mtp")[0] == 0
    before = weights(tmp_path / "out")
    code, _, err = train("mtp", "--learning-rate", "0.1")
    assert code == 2 and "training.learning_rate None, not 0.1" in err and err.count("\n") == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in weights(tmp_path / "out").items())
    assert train("mtp", "--save-minutes", "3")[0] == 0


def test_the_target_answers_and_its_states_are_kept(train, tmp_path):
    shared = ["--regenerate", "--answers", tmp_path / "answers.jsonl", "--answer-tokens", "6", "--temperature", "1"]
    shared += ["--feature-cache", tmp_path / "states"]
    code, _, err = train("mtp", *shared)
    assert code == 0, err
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(answers) == 25 and all(1 <= len(answer["tokens"]) <= 6 for answer in answers)
    assert list((tmp_path / "states").rglob("*.safetensors"))
    again = train("mtp", *shared, output=tmp_path / "again")
    assert again[0] == 0
    one, other = weights(tmp_path / "out"), weights(tmp_path / "again")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert json.loads((tmp_path / "again" / "provenance.json").read_text())["samples"]["answers_reused"] == 25


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        ("eagle3", ["--anchors", "3"], "--anchors is no option of method 'eagle3'; it is one of dflash"),
        ("draft", ["--ttt-steps", "3"], "--ttt-steps is no option of method 'draft'; it is one of eagle3"),
        ("eagle3", ["--ttt-steps", "0"], "ttt_steps is 0; it must be a whole number from 1 to 16"),
        ("eagle3", ["--loss", "klx"], "loss 'klx' is not known; did you mean 'kl'?"),
        ("eagle3", ["--answer-tokens", "3"], "answer_tokens is for answers of the target; ask for them with --regen"),
        ("eagle3", ["--feature-layers", "9"], "feature_layers holds 9; it must be from 0 to 3"),
        ("eagle3", ["--held-out", "1.5"], "held_out is 1.5; it must be at least 0 and less than 1"),
        ("eagle3", ["--steps", "0"], "steps is 0; it must be a whole number at least 1"),
        ("eagle3", ["--learning-rate", "0"], "learning_rate is 0.0; it must be over 0"),
        ("eagle3", ["--train-dtype", "fp8"], "train_dtype 'fp8' is not known"),
        ("eagle3", ["--draft-vocabulary", "0"], "draft_vocabulary is 0; it must be a whole number at least 1"),
        ("dflash", ["--mask-token-id", "999"], "mask_token_id is 999; it must be from 0 to 288"),
        ("draft", ["--init", "nowhere"], "hidden_size is for a fresh model; 'nowhere' has its own"),
    ],
)
def test_a_mistake_is_one_line(train, tmp_path, method, arguments, said):
    code, out, err = train(method, *arguments)
    assert code == 2 and out == ""
    assert said in err and err.startswith("error: ") and err.count("\n") == 1
    assert not (tmp_path / "out" / "provenance.json").exists()


def test_mistakes_about_files_are_one_line(train, target, tmp_path, capsys):
    def refused(*arguments: object) -> str:
        assert main(["train", *map(str, arguments)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and err.count("\n") == 1
        return err

    out, missing = ("--output", tmp_path / "new"), ("--data", tmp_path / "missing.jsonl")
    assert "missing.jsonl': no such file" in refused("eagle3", "--target", target, *missing, *out)
    assert "training method 'eagel3' is not known; did you mean 'eagle3'?" in refused("eagel3", *missing, *out)
    bad = write_lines(tmp_path / "bad.jsonl", "no json")
    assert "bad.jsonl:1: not JSON" in refused("eagle3", "--target", target, "--data", bad, *out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    text = write_lines(tmp_path / "good.jsonl", {"text": f"the cat {END}"})
    full = refused("eagle3", "--target", target, "--data", text, "--output", tmp_path / "full")
    assert "holds other files; give a new or an empty folder" in full


def test_tensorboard_is_asked_for_only_where_it_is(train, monkeypatch):
    monkeypatch.setattr(run_log, "find_spec", lambda name: None)
    code, _, err = train("eagle3", "--tensorboard")
    assert code == 2 and "tensorboard is not installed" in err and err.count("\n") == 1


def test_every_option_has_a_flag_and_help():
    for method in BUILT_IN:
        assert find_method(method).options() == options_for(method, {})
    assert set(owners()["layers"]) == {"eagle1", "eagle3", "medusa", "dflash", "draft"}
    with pytest.raises(ConfigError):
        options_for("mtp", {"layers": 2})
