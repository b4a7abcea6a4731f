"""What a scrape shows of a scripted engine, read with Prometheus' own parser."""

import gc
import re
from collections import Counter
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.engine.output import TokenEvent
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.serving import metrics as metrics_module
from foredraft.serving.latencies import Latencies
from foredraft.serving.metrics import FINISH_REASONS, REJECTIONS, Metrics
from foredraft.serving.routes import metrics as metrics_route
from foredraft.serving.service import service_of

VOCABULARY = 7
VLLM = "vllm:spec_decode_num_"
NGRAM = SpeculationConfig(method="ngram", num_speculative_tokens=4)


def law(history):
    """Logits that count upwards, so that n-gram drafts are soon right."""
    return [5.0 if token == (history[-1] + 1) % VOCABULARY else 0.0 for token in range(VOCABULARY)]


def make_engine(**options) -> Engine:
    return Engine(ScriptedTarget(law, vocabulary=VOCABULARY, slots=512), **({"speculation": NGRAM} | options))


def serve(engine: Engine, metrics: Metrics, prompts: list[list[int]], **sampling) -> list:
    """Step until everything is written, with `metrics` told of each step; the outputs as they ended."""
    engine.submit(prompts, SamplingParams(**({"max_new_tokens": 30, "temperature": 0.0} | sampling)), None)
    outputs = []
    while not engine.scheduler.idle:
        events = engine.step()
        metrics.step(engine, events)
        outputs += [output for _, _, output in events if output is not None]
    return outputs


def samples(metrics: Metrics) -> dict[str, list]:
    """Samples by name, as a scraper reads them."""
    body, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    found: dict[str, list] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def value(found: dict[str, list], name: str, **labels: str) -> float:
    """The one sample of this name with these labels."""
    (sample,) = [sample for sample in found[name] if labels.items() <= sample.labels.items()]
    return sample.value


def values(found: dict[str, list], name: str, label: str) -> dict[str, float]:
    return {sample.labels[label]: sample.value for sample in found.get(name, [])}


@pytest.fixture
def served():
    engine = make_engine()
    metrics = Metrics(engine, model_name="served")
    outputs = serve(engine, metrics, [[0, 1, 2, 3, 4, 5, 6, 0, 1], [3, 4, 5]])
    return engine, metrics, outputs


def test_vllm_counters_have_its_names_and_labels(served):
    _, metrics, outputs = served
    text = metrics.render()[0].decode()
    names = set(re.findall(r"^(vllm:\w+)", text, flags=re.MULTILINE))
    assert names == {
        f"{VLLM}{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
    }
    found = samples(metrics)
    statistics = [output.statistics for output in outputs]
    assert value(found, f"{VLLM}drafts_total") == sum(own.drafts for own in statistics) > 0
    assert value(found, f"{VLLM}draft_tokens_total") == sum(own.drafted for own in statistics)
    assert value(found, f"{VLLM}accepted_tokens_total") == sum(own.accepted for own in statistics) > 0
    positions = values(found, f"{VLLM}accepted_tokens_per_pos_total", "position")
    assert list(positions) == ["0", "1", "2", "3"]
    assert sum(positions.values()) == value(found, f"{VLLM}accepted_tokens_total")
    assert all(s.labels["model_name"] == "served" and s.labels["engine"] == "0" for n in names for s in found[n])


def test_every_sample_names_the_model(served):
    _, metrics, _ = served
    assert all(sample.labels["model_name"] == "served" for own in samples(metrics).values() for sample in own)
    assert all(s.labels["model_name"] == "scripted" for own in samples(Metrics(make_engine())).values() for s in own)


def test_tokens_and_ends_are_counted(served):
    _, metrics, outputs = served
    found = samples(metrics)
    assert value(found, "foredraft_prompt_tokens_total") == 12
    assert value(found, "foredraft_generated_tokens_total") == 60
    assert value(found, "foredraft_rounds_total") == sum(output.statistics.rounds for output in outputs)
    assert values(found, "foredraft_finished_requests_total", "finish_reason") == {
        **dict.fromkeys(FINISH_REASONS, 0.0),
        "length": 2.0,
    }


def test_continuations_of_one_prompt_count_it_once():
    engine = make_engine()
    metrics = Metrics(engine)
    serve(engine, metrics, [[1, 2, 3]], n=3, temperature=1.0)
    found = samples(metrics)
    assert value(found, "foredraft_prompt_tokens_total") == 3
    assert value(found, "foredraft_generated_tokens_total") == 90


def test_drafts_are_counted_by_drafter(served):
    engine, metrics, _ = served
    found = samples(metrics)
    assert values(found, "foredraft_draft_tokens_total", "drafter") == {"ngram": engine.statistics.drafted}
    assert values(found, "foredraft_accepted_tokens_total", "drafter") == {"ngram": engine.statistics.accepted}


def test_step_time_is_told_by_part(served):
    engine, metrics, _ = served
    parts = values(samples(metrics), "foredraft_step_seconds_total", "part")
    statistics = engine.statistics
    assert parts == {
        "draft": pytest.approx(statistics.draft_seconds),
        "verify": pytest.approx(statistics.verify_seconds),
        "other": pytest.approx(statistics.other_seconds),
    }
    assert min(parts.values()) > 0


def test_latencies_are_observed_once_a_request_or_step(served):
    _, metrics, outputs = served
    found = samples(metrics)
    assert value(found, "foredraft_time_to_first_token_seconds_count") == 2
    assert value(found, "foredraft_request_seconds_count") == 2
    steps_after_the_first = sum(output.statistics.rounds - 1 for output in outputs)
    assert value(found, "foredraft_time_between_tokens_seconds_count") == steps_after_the_first
    assert value(found, "foredraft_request_seconds_sum") >= value(found, "foredraft_time_to_first_token_seconds_sum")
    for name in ("time_to_first_token", "time_between_tokens", "request"):
        buckets = values(found, f"foredraft_{name}_seconds_bucket", "le")
        assert list(buckets.values()) == sorted(buckets.values())
        assert buckets["+Inf"] == value(found, f"foredraft_{name}_seconds_count")


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Request:
    """As much of a running request as metrics look at."""

    def __init__(self, submitted: float):
        self.submitted, self.sample = submitted, 0
        self.request = SimpleNamespace(prompt=[1, 2])


def event(tokens: int, finish_reason: str | None = None) -> TokenEvent:
    return TokenEvent(
        index=0, sample=0, tokens=[1] * tokens, sources=[None] * tokens, text="", finish_reason=finish_reason
    )


def observed(latencies: Latencies) -> tuple[int, float]:
    return sum(latencies.counts), pytest.approx(latencies.seconds)


def test_latencies_are_those_a_client_sees(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(metrics_module, "perf_counter", clock)
    engine = make_engine()
    metrics, request = Metrics(engine), Request(submitted=98.0)
    metrics.step(engine, [(request, event(1), None)])
    assert observed(metrics.first_token) == (1, 2.0)  # its time in the queue included
    clock.now = 101.0
    metrics.step(engine, [(request, event(4), None)])
    assert observed(metrics.between_tokens) == (1, 0.25)
    clock.now = 101.5
    metrics.step(engine, [(request, event(0, "stop"), None)])
    assert observed(metrics.between_tokens) == (1, 0.25)
    assert observed(metrics.whole) == (1, 3.5)


@pytest.mark.parametrize("reason", ["error", "cancelled", "timeout", "shutdown"])
def test_what_was_not_served_whole_counts_by_its_reason_alone(reason):
    engine = make_engine()
    metrics = Metrics(engine)
    metrics.step(engine, [(Request(submitted=0.0), event(0, reason), None)])
    found = samples(metrics)
    assert value(found, "foredraft_finished_requests_total", finish_reason=reason) == 1
    assert value(found, "foredraft_request_seconds_count") == 0
    assert value(found, "foredraft_time_to_first_token_seconds_count") == 0
    assert value(found, "foredraft_prompt_tokens_total") == 0


def test_a_dropped_request_leaves_nothing_behind():
    engine = make_engine()
    metrics = Metrics(engine)
    requests = engine.submit([[1, 2, 3]], SamplingParams(max_new_tokens=30), None)
    metrics.step(engine, engine.step())
    assert [running.request.prompt for running in metrics.last_event] == [[1, 2, 3]]
    engine.cancel(requests)
    del requests
    serve(engine, metrics, [[4, 5]] * 9)  # until nobody remembers the last step of the other
    gc.collect()
    assert [1, 2, 3] not in [running.request.prompt for running in metrics.last_event]


def test_gauges_follow_the_engine():
    engine = make_engine(max_batch=2)
    metrics = Metrics(engine)
    requests = engine.submit([[1, 2, 3]] * 5, SamplingParams(max_new_tokens=30), None)
    metrics.step(engine, engine.step())
    found = samples(metrics)
    assert value(found, "foredraft_requests_waiting") == 3
    assert value(found, "foredraft_requests_running") == value(found, "foredraft_requests_running_limit") == 2
    assert value(found, "foredraft_slots_used") == engine.target.pool.size - engine.target.pool.free > 0
    assert value(found, "foredraft_slots_limit") == 512
    engine.cancel(requests)
    found = samples(metrics)
    assert value(found, "foredraft_requests_waiting") == value(found, "foredraft_requests_running") == 0


def test_counts_never_fall():
    engine = make_engine()
    metrics = Metrics(engine)
    before: dict[tuple, float] = {}
    for _ in range(2):
        engine.submit([[0, 1, 2, 3] * 4] * 3, SamplingParams(max_new_tokens=20, temperature=0.0), None)
        while not engine.scheduler.idle:
            metrics.step(engine, engine.step())
            now = {
                (sample.name, *sorted(sample.labels.items())): sample.value
                for name, own in samples(metrics).items()
                for sample in own
                if name.endswith(("_total", "_count", "_bucket"))
            }
            assert all(now[key] >= count for key, count in before.items())
            before = now
    assert before[(f"{VLLM}drafts_total", ("engine", "0"), ("model_name", "scripted"))] > 0


def test_counts_are_read_where_the_engine_stands_still(monkeypatch):
    """A scrape in the middle of a step sees the counts after an earlier one, and asks the engine for nothing."""
    engine = make_engine()
    metrics = Metrics(engine)
    serve(engine, metrics, [[0, 1, 2, 3] * 4])
    before = value(samples(metrics), "foredraft_generated_tokens_total")
    forward, seen = engine.target.forward, []

    def scraped(*arguments):
        seen.append(value(samples(metrics), "foredraft_generated_tokens_total"))
        return forward(*arguments)

    monkeypatch.setattr(engine.target, "forward", scraped)
    monkeypatch.setattr(metrics_module, "STATISTICS_SECONDS", 0.0)
    serve(engine, metrics, [[0, 1, 2, 3] * 4])
    assert seen[0] == before and seen == sorted(seen) and len(set(seen)) > 2


def test_rejections_are_counted_by_reason():
    metrics = Metrics(make_engine())
    for reason in ("busy", "busy", "too_large"):
        metrics.rejected(reason)
    assert values(samples(metrics), "foredraft_rejected_requests_total", "reason") == {
        **dict.fromkeys(REJECTIONS, 0.0),
        "busy": 2.0,
        "too_large": 1.0,
    }


def test_speculation_that_is_off_counts_no_drafts():
    engine = make_engine(speculation=OFF)
    metrics = Metrics(engine)
    serve(engine, metrics, [[1, 2, 3]])
    found = samples(metrics)
    assert value(found, f"{VLLM}drafts_total") == value(found, f"{VLLM}draft_tokens_total") == 0
    assert f"{VLLM}accepted_tokens_per_pos_total" not in found
    assert "foredraft_speed_up_estimate" not in found and "foredraft_policy_choices_total" not in found


def test_the_policy_tells_its_choices_and_its_estimate():
    engine = make_engine(speculation=SpeculationConfig(method="auto"), cost_seconds=0.1)
    metrics = Metrics(engine)
    (output,) = serve(engine, metrics, [[0, 1, 2, 3, 4, 5, 6] * 3])
    found = samples(metrics)
    choices = values(found, "foredraft_policy_choices_total", "choice")
    assert Counter(choices) == engine.policy.taken.choices and sum(choices.values()) == output.statistics.rounds
    assert value(found, "foredraft_speed_up_estimate") == pytest.approx(engine.policy.report()["speed_up"])


def test_the_prefix_cache_is_told_where_there_is_one():
    cold = make_engine(prefix_cache=False)
    assert not [name for name in samples(Metrics(cold)) if name.startswith("foredraft_prefix")]
    engine = make_engine()
    metrics = Metrics(engine)
    for _ in range(2):
        serve(engine, metrics, [[0, 1, 2, 3, 4, 5, 6] * 3])
    found = samples(metrics)
    assert value(found, "foredraft_prefix_queries_total") == 2
    assert value(found, "foredraft_prefix_hits_total") == 1
    assert value(found, "foredraft_prefix_hit_tokens_total") == 20
    assert value(found, "foredraft_prefix_cached_tokens") == engine.target.pool.size - engine.target.pool.free


def test_two_servers_in_one_process_do_not_share_metrics():
    first, second = Metrics(make_engine()), Metrics(make_engine())
    first.rejected("busy")
    assert value(samples(second), "foredraft_rejected_requests_total", reason="busy") == 0


@pytest.mark.parametrize(("seconds", "place"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.1, 2)])
def test_a_bound_holds_what_is_not_above_it(seconds, place):
    latencies = Latencies((1.0, 2.0))
    latencies.observe(seconds)
    assert latencies.counts == [int(i == place) for i in range(3)]
    family = latencies.family("x_seconds", "For a test.", {"model_name": "m"})
    cumulative = {s.labels["le"]: s.value for s in family.samples if s.name == "x_seconds_bucket"}
    assert cumulative == {"1.0": int(place == 0), "2.0": int(place <= 1), "+Inf": 1}


def test_the_route_answers_as_prometheus_expects(served):
    _, metrics, _ = served
    app = FastAPI()
    app.include_router(metrics_route.router)
    app.dependency_overrides[service_of] = lambda: SimpleNamespace(metrics=metrics)
    reply = TestClient(app).get("/metrics")
    body, content_type = metrics.render()
    assert reply.status_code == 200
    assert reply.headers["content-type"] == content_type
    assert reply.content == body
    declared = app.openapi()["paths"]["/metrics"]["get"]["responses"]
    assert list(declared["200"]["content"]) == ["text/plain"]
    assert list(declared["401"]["content"]) == ["application/json"]
