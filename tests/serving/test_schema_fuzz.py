"""Whatever the server's own OpenAPI document allows, and what it forbids: every answer is one that it declares.

FOREDRAFT_FUZZ_EXAMPLES sets how many examples an operation gets beside the document's boundary values.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from live_server import Live, served
from openai.types import Completion
from openai.types.chat import ChatCompletion
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)
from spelling_target import SpellingTarget

from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.serving.app import create_app
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.server_config import ServerConfig

EXAMPLES = os.environ.get("FOREDRAFT_FUZZ_EXAMPLES")
SHORT = 20  # examples; many more are made at random
CONFIG = ServerConfig(limits=Limits(max_continuations=8, max_tokens=24))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
OPERATIONS = {
    "GET /health",
    "GET /metrics",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "GET /version",
    "POST /detokenize",
    "POST /tokenize",
    "POST /v1/chat/completions",
    "POST /v1/completions",
}
TEXTS = {"/v1/chat/completions": ChatCompletion, "/v1/completions": Completion}
OF_STREAMS = ("stream_options", "stream_chunk", "return_drafts")
GUIDES = ("guided_json", "guided_regex", "guided_grammar", "response_format")


def engine() -> Engine:
    target = SpellingTarget(slots=2048)
    target.context_length = 256
    return Engine(target, speculation=SpeculationConfig(method="ngram"), max_batch=8)


api = schemathesis.openapi.from_dict(create_app(engine(), CONFIG).openapi())
api.config.max_stream_events = 10_000  # to the end: by default it hangs up on a long stream


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with served(engine(), CONFIG) as live:
        yield live


@pytest.fixture(scope="module")
def answers() -> Counter[tuple[str, int]]:
    """How often each operation was answered with each status, in all of this file."""
    return Counter()


def fuzzed(label: str) -> Callable[..., None]:
    """The test of one operation: whatever it is sent, it answers as declared."""
    method, path = label.split()

    @api.include(method=method, path=path).parametrize()
    @settings(
        max_examples=int(EXAMPLES or SHORT),
        derandomize=EXAMPLES is None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def test(live, answers, case):
        send(live, answers, case)

    return test


# A name for each operation: schemathesis gives all tests of one function one node id, and of tests that share one
# pytest-xdist runs only the first under --dist loadfile.
for label in sorted(OPERATIONS):
    globals()[f"test_every_answer_is_declared_by_{re.sub('[^a-z]+', '_', label.lower()).strip('_')}"] = fuzzed(label)


def send(live: Live, answers: Counter[tuple[str, int]], case: Case) -> None:
    """What contradicts itself across fields is sent once more without the contradiction, so that it gets further."""
    status = checked(live, answers, case)
    allowed = case.meta.generation.mode == GenerationMode.POSITIVE
    if allowed and status in (400, 404) and isinstance(case.body, dict):
        case.body = agreeing(case.body)
        checked(live, answers, case)


def checked(live: Live, answers: Counter[tuple[str, int]], case: Case) -> int:
    """Make a call and check its answer; its status."""
    response = case.call(base_url=live.url)
    answers[case.operation.label, response.status_code] += 1
    case.validate_response(response, checks=CHECKS)
    kind = TEXTS.get(case.operation.path)
    if kind is not None and response.status_code == 200:
        check_text(kind, response)
    return response.status_code


def check_text(kind: type[ChatCompletion] | type[Completion], response: Response) -> None:
    """A whole reply has OpenAI's form; a stream ends as streams end."""
    if response.headers["content-type"] == ["application/json"]:
        body = json.loads(response.content)
        for choice in body["choices"] if kind is Completion else ():
            check_first_of_echo(choice["logprobs"] or {})
        kind.model_validate(body, strict=True)
    else:
        events = response.content.decode().strip().split("\n\n")
        assert events[-1] == "data: [DONE]" or json.loads(events[-1][6:])["error"]["code"] == "timeout"


def check_first_of_echo(logprobs: dict[str, list[Any]]) -> None:
    """Take out the first entry of an echoed prompt: OpenAI sends null for it, which its types do not tell of."""
    for name in ("token_logprobs", "top_logprobs"):
        values = logprobs.get(name) or []
        if values and values[0] is None:
            del values[0]


def agreeing(body: dict[str, Any]) -> dict[str, Any]:
    """`body` without fields that say something against others of it, or against this one server."""
    own = {name: value for name, value in body.items() if name not in ("model", "best_of", "max_completion_tokens")}
    dropped = [] if own.get("stream") else [*OF_STREAMS]
    dropped += [] if own.get("logprobs") or "prompt" in own else ["top_logprobs"]
    dropped += [name for name in GUIDES if own.get(name) is not None][0 if own.get("tools") else 1 :]
    dropped += ["speculation"] if (own.get("speculation") or {}).get("enabled") is False else []
    kept = {name: value for name, value in own.items() if name not in dropped}
    bounded = [name for name in ("max_tokens", "min_tokens") if kept.get(name) is not None]
    return kept | {name: min(kept[name] or 1, CONFIG.limits.max_tokens) for name in bounded}


def test_the_document_has_every_operation():
    assert {each.ok().label for each in api.get_all_operations()} == OPERATIONS


def test_calls_got_through(answers):
    """Every operation was fuzzed, and the document is not so narrow, nor the server so strict, that only refusals were
    seen."""
    assert {label for label, _ in answers} == OPERATIONS
    assert {label for label in OPERATIONS if answers[label, 200]} == OPERATIONS - {"GET /v1/models/{model}"}
    for label in ("POST /v1/chat/completions", "POST /v1/completions"):
        assert answers[label, 200] > 100 and answers[label, 400] > 100


def test_nothing_is_left_open(live):
    snapshot = live.service.worker.snapshot()
    assert (snapshot.waiting, snapshot.running, snapshot.faults, snapshot.alive) == (0, 0, 0, True)
    live.stop()
    live.service.engine.target.pool.check_integrity([])
