"""What all benchmarks share: earlier runs are out of sight, mistakes are one line."""

import os
from pathlib import Path

from command_line import run_command
from cyclopts import App

from foredraft.core.cache_folder import cache_folder
from foredraft.core.errors import ConfigError

app = App()


@app.default
def look(*, fail: bool = False) -> int:
    folder = cache_folder()
    assert not list(folder.iterdir())
    (folder / "learned").write_text("something")
    if fail:
        raise ConfigError("--fail is given;\nleave it out")
    return 3


def test_earlier_runs_are_out_of_sight():
    before = os.environ["FOREDRAFT_CACHE"]
    assert [run_command(app, []) for _ in range(2)] == [3, 3]
    assert os.environ["FOREDRAFT_CACHE"] == before and not Path(before, "learned").exists()


def test_a_mistake_is_one_line(capsys):
    before = os.environ["FOREDRAFT_CACHE"]
    assert run_command(app, ["--fail"]) == 2
    assert capsys.readouterr().err == "error: --fail is given; leave it out\n"
    assert os.environ["FOREDRAFT_CACHE"] == before
