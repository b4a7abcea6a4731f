"""The benchmark of a device: a moment of the real one on the CPU, and its mistakes."""

import json

import pytest
from device import command

QUICK = ["--device", "cpu", "--dtype", "fp32", "--rounds", "1", "--seconds", "0", "--max-new-tokens", "6"]


def test_a_moment_of_the_real_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_NATIVE", "off")
    file = tmp_path / "device.json"
    assert (
        command([*QUICK, "--output", str(file), "--sizes", "micro", "--methods", "suffix", "--at-once", "1", "2"]) == 0
    )
    record = json.loads(file.read_text())
    assert set(record["forwards"]) == {"tiny", "micro"} and record["commit"] is not None
    assert all(cost["seconds"] > 0 for cost in record["forwards"]["micro"]["module"])
    assert [(own["at_once"], own["method"]) for own in record["texts"]] == [
        (1, "none"), (1, "suffix"), (2, "none"), (2, "suffix"),
    ]  # fmt: skip
    assert all(own["unlike_plain"] == 0 and own["tokens_per_second"] for own in record["texts"])
    assert "2 at once, suffix: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--sizes", "70b"], "--sizes is '70b'; it must be one of micro, 1b, 8b"),
        (["--methods", "magic"], "--methods is 'magic'; it must be one of none, suffix"),
        (["--at-once", "0"], "--at-once is 0; it must be"),
    ],
)
def test_a_mistake_is_one_line(wrong, said, tmp_path, capsys):
    assert command([*QUICK, "--output", str(tmp_path / "device.json"), *wrong]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
