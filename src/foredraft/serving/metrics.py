"""What `/metrics` tells: vLLM's counters of speculation under their own names, and ours as `foredraft_...`.

The engine keeps most of these numbers itself. They are read when somebody asks; only latencies, finished and rejected
requests are counted here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from threading import Lock
from time import perf_counter
from weakref import WeakKeyDictionary

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.engine.running import Running
from foredraft.serving.latencies import BETWEEN_TOKENS_BOUNDS, FIRST_TOKEN_BOUNDS, WHOLE_BOUNDS, Latencies

REJECTIONS = ("busy", "stopping", "invalid", "unauthorized", "too_large", "engine")
FINISH_REASONS = ("stop", "length", "error", "cancelled", "timeout", "shutdown")
SERVED = ("stop", "length")
STATISTICS_SECONDS = 0.5  # age of the engine's counts while it is busy: adding them up takes a moment for each request

StepEvents = list[tuple[Running, TokenEvent, RequestOutput | None]]


class Metrics:
    """Everything a scrape of one engine shows; an observer of its steps.

    Counts of speculation are those after the last step of a burst of work, and up to half a second old within one.

    Attributes:
        engine: Whose numbers they are.
        model: Label `model_name` of every sample.
        prompt_tokens: Prompt tokens of requests that have begun to write; continuations of one prompt count it once.
        first_token, between_tokens, whole: Latencies: from submission to the first token, from one step of a request
            to the next by the tokens it wrote, from submission to the end of what was served whole.
        finished: Requests by finish reason.
        rejections: Calls that were refused, by reason.
        last_event: When each request wrote last; a request that is dropped takes its entry with it.
        statistics: The engine's counts, added up on its own thread, where nothing moves meanwhile.
        statistics_at: When.
    """

    def __init__(self, engine: Engine, *, model_name: str | None = None):
        self.engine = engine
        self.model = model_name or engine.target.name
        self.prompt_tokens = 0
        self.first_token = Latencies(FIRST_TOKEN_BOUNDS)
        self.between_tokens = Latencies(BETWEEN_TOKENS_BOUNDS)
        self.whole = Latencies(WHOLE_BOUNDS)
        self.finished = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self.rejections = Counter(dict.fromkeys(REJECTIONS, 0))
        self.rejecting = Lock()  # any thread may reject
        self.last_event: WeakKeyDictionary[Running, float] = WeakKeyDictionary()
        self.statistics, self.statistics_at = engine.statistics, perf_counter()
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def step(self, engine: Engine, events: StepEvents) -> None:
        """Take in what a step of the engine, on its thread, has written, and which requests ended without one."""
        now = perf_counter()
        for running, event, _ in events:
            if event.tokens:
                self.wrote(running, len(event.tokens), now)
            if event.finish_reason:
                self.finished[event.finish_reason] += 1
                if event.finish_reason in SERVED:
                    self.whole.observe(now - running.submitted)
        if now - self.statistics_at >= STATISTICS_SECONDS or engine.scheduler.idle:
            self.statistics, self.statistics_at = engine.statistics, now

    def wrote(self, running: Running, tokens: int, now: float) -> None:
        before = self.last_event.get(running)
        self.last_event[running] = now
        if before is not None:
            self.between_tokens.observe((now - before) / tokens)
            return
        self.first_token.observe(now - running.submitted)
        if running.sample == 0:
            self.prompt_tokens += len(running.request.prompt)

    def rejected(self, reason: str) -> None:
        """Count a call that was refused; any thread. The reason is one of `REJECTIONS`."""
        assert reason in REJECTIONS
        with self.rejecting:
            self.rejections[reason] += 1

    def render(self) -> tuple[bytes, str]:
        """All metrics in Prometheus' text format, and its content type; any thread."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST

    def collect(self) -> Iterator[Metric]:
        """Every metric by its current value. What the engine's thread may change is copied whole before it is read."""
        yield from self.vllm_counters()
        yield from self.queue()
        yield from self.slots()
        yield from self.prefix_cache()
        yield from self.work()
        yield from self.speculation()
        yield from self.requests()

    def vllm_counters(self) -> Iterator[Metric]:
        """The four counters that load clients of vLLM read, with its labels."""
        statistics, labels = self.statistics, {"engine": "0"}
        yield self.counter("vllm:spec_decode_num_drafts", "Steps of a request with a draft.", statistics.drafts, labels)
        yield self.counter("vllm:spec_decode_num_draft_tokens", "Draft tokens.", statistics.drafted, labels)
        yield self.counter(
            "vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", statistics.accepted, labels
        )
        positions = {str(position): count for position, count in enumerate(statistics.accepted_at)}
        name, help_text = "vllm:spec_decode_num_accepted_tokens_per_pos", "Draft tokens accepted, by position."
        yield self.counters(name, help_text, "position", positions, labels)

    def queue(self) -> Iterator[Metric]:
        scheduler = self.engine.scheduler
        yield self.gauge("foredraft_requests_waiting", "Requests that wait for room.", len(scheduler.waiting))
        yield self.gauge("foredraft_requests_running", "Requests that are being served.", len(scheduler.running))
        yield self.gauge("foredraft_requests_running_limit", "Most requests served at a time.", scheduler.max_batch)

    def slots(self) -> Iterator[Metric]:
        pool = self.engine.target.pool
        yield self.gauge("foredraft_slots_used", "Cache slots in use, one a token.", pool.size - pool.free)
        yield self.gauge("foredraft_slots_limit", "Cache slots there are.", pool.size)

    def prefix_cache(self) -> Iterator[Metric]:
        cache = self.engine.prefix_cache
        if cache is None:
            return
        yield self.counter("foredraft_prefix_queries", "Prompts looked up in the prefix cache.", cache.queries)
        yield self.counter("foredraft_prefix_hits", "Prompts of which it held a beginning.", cache.hits)
        yield self.counter("foredraft_prefix_hit_tokens", "Prompt tokens it saved computing.", cache.hit_tokens)
        yield self.gauge("foredraft_prefix_cached_tokens", "Tokens it holds.", cache.cached_tokens)

    def work(self) -> Iterator[Metric]:
        statistics = self.statistics
        parts = {
            "draft": statistics.draft_seconds,
            "verify": statistics.verify_seconds,
            "other": statistics.other_seconds,
        }
        yield self.counters("foredraft_step_seconds", "Time of steps, by part.", "part", parts)
        yield self.counter("foredraft_prompt_tokens", "Prompt tokens of requests that wrote.", self.prompt_tokens)
        yield self.counter("foredraft_generated_tokens", "Tokens written.", statistics.committed)

    def speculation(self) -> Iterator[Metric]:
        statistics, policy = self.statistics, self.engine.policy
        yield self.counter("foredraft_rounds", "Forwards that decided, each request's own.", statistics.rounds)
        drafted, accepted = statistics.drafted_by, statistics.accepted_by
        yield self.counters("foredraft_draft_tokens", "Draft tokens, by drafter.", "drafter", drafted)
        yield self.counters("foredraft_accepted_tokens", "Those accepted, by drafter.", "drafter", accepted)
        choices = dict(policy.taken.choices)
        yield self.counters("foredraft_policy_choices", "Steps of a request by the way to draft.", "choice", choices)
        speed_up = policy.report()["speed_up"]
        if speed_up is not None:
            help_text = "Estimated speed over plain decoding's where the policy chooses."
            yield self.gauge("foredraft_speed_up_estimate", help_text, speed_up)

    def requests(self) -> Iterator[Metric]:
        finished, rejections = dict(self.finished), dict(self.rejections)
        name, help_text = "foredraft_finished_requests", "Requests that ended, by finish reason."
        yield self.counters(name, help_text, "finish_reason", finished)
        yield self.counters("foredraft_rejected_requests", "Calls refused, by reason.", "reason", rejections)
        labels = {"model_name": self.model}
        name, help_text = "foredraft_time_to_first_token_seconds", "From submission to the first token."
        yield self.first_token.family(name, help_text, labels)
        name = "foredraft_time_between_tokens_seconds"
        help_text = "From one step of a request to the next, by the tokens it wrote there; one observation a step."
        yield self.between_tokens.family(name, help_text, labels)
        yield self.whole.family(
            "foredraft_request_seconds", "From submission to the end, of requests served whole.", labels
        )

    def counter(
        self, name: str, help_text: str, value: float, labels: Mapping[str, str] | None = None
    ) -> CounterMetricFamily:
        """A running total; Prometheus appends `_total` to its name."""
        named = {"model_name": self.model} | dict(labels or {})
        family = CounterMetricFamily(name, help_text, labels=list(named))
        family.add_metric(list(named.values()), value)
        return family

    def counters(
        self, name: str, help_text: str, by: str, values: Mapping[str, float], labels: Mapping[str, str] | None = None
    ) -> CounterMetricFamily:
        """Running totals of one kind, told apart by the label `by`."""
        named = {"model_name": self.model} | dict(labels or {})
        family = CounterMetricFamily(name, help_text, labels=[*named, by])
        for value, count in values.items():
            family.add_metric([*named.values(), value], count)
        return family

    def gauge(self, name: str, help_text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, help_text, labels=["model_name"])
        family.add_metric([self.model], value)
        return family
