"""lm-eval's `local-completions` against a running server says what lm-eval says of the same weights run directly.

Needs lm_eval: here, or where FOREDRAFT_LM_EVAL names the Python interpreter of an environment that has it, accelerate
included. Nothing is fetched: tasks and model are local folders.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_server import Live, served

from foredraft import Engine, SpeculationConfig

MODEL = Path(__file__).resolve().parents[3] / "shared" / "models" / "stories260K"
RUN = Path(__file__).with_name("lm_eval_run.py")
CHOICES, BEGINNINGS, STORIES = TASKS = ["foredraft_choices", "foredraft_beginnings", "foredraft_stories"]
WAYS = {  # to ask the server
    "tokens": {"tokenized_requests": True},
    "strings": {"tokenized_requests": False},
    "batches of tokens": {"tokenized_requests": True, "batch_size": 7},
    "batches of strings at once": {"tokenized_requests": False, "batch_size": 3, "num_concurrent": 4},
}
CLOSE = 1e-3  # of log-likelihoods


def interpreter() -> str | None:
    """A Python that has lm_eval."""
    own = sys.executable if importlib.util.find_spec("lm_eval") else None
    return os.environ.get("FOREDRAFT_LM_EVAL") or own


pytestmark = [
    pytest.mark.skipif(interpreter() is None, reason="lm_eval is not here, and FOREDRAFT_LM_EVAL names no Python"),
    pytest.mark.skipif(not MODEL.is_dir(), reason=f"the model is read from {MODEL}, which is not there"),
]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """The engine drafts, and its cache holds a few texts only."""
    engine = Engine.from_pretrained(
        str(MODEL), dtype="fp32", threads=1, cache_tokens=1024, speculation=SpeculationConfig(method="suffix")
    )
    with served(engine) as live:
        yield live


@pytest.fixture(scope="module")
def reports(live, tmp_path_factory) -> dict[str, dict]:
    """What lm-eval reports of the model run by transformers (`direct`) and of the server by each way to ask it."""
    direct = {"model": "hf", "model_args": {"pretrained": str(MODEL), "dtype": "float32", "device": "cpu"}}
    asked = {"model": live.model, "base_url": f"{live.url}/v1/completions", "tokenizer": str(MODEL), "max_length": 512}
    runs = [direct, *({"model": "local-completions", "model_args": asked | way} for way in WAYS.values())]
    environment = os.environ | {"HF_HOME": str(tmp_path_factory.mktemp("hub")), "HF_HUB_OFFLINE": "1"}
    finished = subprocess.run(
        [interpreter(), str(RUN), json.dumps([run | {"tasks": TASKS} for run in runs])],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return dict(zip(["direct", *WAYS], json.loads(finished.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("way", WAYS)
def test_metrics_are_those_of_direct_evaluation(reports, way):
    got, expected = reports[way]["metrics"], reports["direct"]["metrics"]
    assert got[CHOICES] == expected[CHOICES] and 0.5 < expected[CHOICES]["acc"] < 1
    assert got[BEGINNINGS] == expected[BEGINNINGS] == {"exact_match": 1.0}
    assert got[STORIES] == pytest.approx(expected[STORIES], abs=CLOSE)


@pytest.mark.parametrize("way", WAYS)
def test_every_log_likelihood_is_that_of_direct_evaluation(reports, way):
    got, expected = (flat(reports[name]["answers"][CHOICES]) for name in (way, "direct"))
    assert [greedy for _, greedy in got] == [greedy for _, greedy in expected]
    assert [value for value, _ in got] == pytest.approx([value for value, _ in expected], abs=CLOSE)
    assert len(got) == 80 and 0 < sum(greedy for _, greedy in expected) < 80
    got, expected = ([value for ((value,),) in reports[name]["answers"][STORIES]] for name in (way, "direct"))
    assert got == pytest.approx(expected, abs=CLOSE) and len(got) == 4


@pytest.mark.parametrize("way", WAYS)
def test_every_generated_text_is_that_of_direct_evaluation(reports, way):
    got, expected = (reports[name]["answers"][BEGINNINGS] for name in (way, "direct"))
    assert stripped(got) == stripped(expected) and all(stripped(expected))


def flat(answers: list) -> list[tuple[float, bool]]:
    """Log-likelihood of each choice of each document, and whether greedy decoding would write it."""
    return [tuple(answer) for document in answers for (answer,) in document]


def stripped(answers: list) -> list[str]:
    """One text a document; the space before its first word belongs to the prompt or to it, as one takes it."""
    return [text.strip() for ((text,),) in answers]
