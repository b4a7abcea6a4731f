"""The one loop: plain decoding is speculation with an empty draft."""

import logging
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter

from foredraft.core.errors import PromptError, require
from foredraft.core.fault_log import log_fault
from foredraft.core.outcome import SpeculationStatistics, total
from foredraft.core.recent import Recent
from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams, whole, within
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter, make_drafter
from foredraft.engine import step
from foredraft.engine.cost_store import ready_costs
from foredraft.engine.experience_store import ExperienceStore
from foredraft.engine.kept_ways import KEPT_OPTIONS, KnownOptions, forget_spare
from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.engine.policy.live_costs import LiveCosts, rough_costs
from foredraft.engine.policy.policy import Policy
from foredraft.engine.policy.portfolio import options_for
from foredraft.engine.prefix_cache import PrefixCache
from foredraft.engine.quarantine import Quarantine
from foredraft.engine.running import Option, Running, Work
from foredraft.engine.scheduler import MAX_STEP_ROWS, PREFILL_ROWS, Scheduler
from foredraft.engine.writing import failure, output_of, share_time, written_or_failed
from foredraft.model.target import Target, load_target
from foredraft.sampling.bad_words import encode_bad_words
from foredraft.sampling.detokenizer import Detokenizer
from foredraft.sampling.grammar import grammar_for
from foredraft.sampling.request_sampler import RequestSampler
from foredraft.sampling.stopping import Stopper
from foredraft.verification.verifier import rules

Prompt = str | Sequence[int]
PRIORITIES = (-(2**31), 2**31 - 1)
logger = logging.getLogger("foredraft.engine")


class Engine:
    """Exact speculative generation over one target.

        engine = Engine.from_pretrained("tiny", speculation=SpeculationConfig(method="ngram"))
        for output in engine.generate(["def add(a, b):"], SamplingParams(max_new_tokens=64)):
            print(output.text, output.statistics.tau)

    Attributes:
        target: The model whose text is written.
        speculation: How requests speculate unless they say otherwise.
        quarantine: Requests of a step that failed, each to run alone.
        ended: Counts over all requests that have ended.
        policy: Chooses how each request is drafted for where its config leaves that open.
        experiences: Keeps what it has learned for the next start.
        cost_seconds: Time that measuring what steps cost may take.
        clock: Tells what steps and drafts take.
    """

    def __init__(
        self,
        target: Target,
        *,
        speculation: SpeculationConfig | None = None,
        max_batch: int = 8,
        draft_rows: int = MAX_STEP_ROWS,
        step_rows: int = MAX_STEP_ROWS,
        prefill_rows: int = PREFILL_ROWS,
        prefix_cache: bool = True,
        cost_seconds: float = 3.0,
        clock: Callable[[], float] = perf_counter,
    ):
        """An engine for at most `max_batch` requests at a time.

        A step computes at most `step_rows` tokens besides drafts; of prompts at most `prefill_rows` while others write.
        With `prefix_cache` a request goes on from what was computed for an earlier one that began with the same text.
        Where the policy chooses, a step holds at most `draft_rows` draft nodes, and what steps cost is measured in
        about `cost_seconds` before the first request, unless it is known from an earlier start. What steps and drafts
        take is read from `clock`, in seconds: by another one than the machine's, choices are those of another machine.

        Raises `ConfigError` for an unknown drafter and `VocabularyError` for one that does not fit.
        """
        whole("max_batch", max_batch, 1)
        whole("draft_rows", draft_rows, 0)
        whole("step_rows", step_rows, 1)
        whole("prefill_rows", prefill_rows, 1)
        within("cost_seconds", cost_seconds, 0, 3600)
        self.target = target
        self.speculation = speculation or SpeculationConfig()
        self.scheduler = Scheduler(
            target.pool,
            max_batch,
            step_rows=step_rows,
            prefill_rows=prefill_rows,
            on_loss=self.start_over,
            prefix_cache=PrefixCache(target.pool) if prefix_cache else None,
        )
        self.quarantine, self.ended = Quarantine(), SpeculationStatistics()
        self.drafters: dict[SpeculationConfig, Drafter] = {}
        self.policy, self.cost_seconds = Policy(draft_rows=draft_rows, clock=clock), cost_seconds
        self.clock = clock
        self.experiences = ExperienceStore(target)
        self.options: KnownOptions = Recent(KEPT_OPTIONS)
        self.options_of(self.speculation)

    @property
    def prefix_cache(self) -> PrefixCache | None:
        """What is kept of earlier texts; none where that is switched off."""
        return self.scheduler.prefix_cache

    @contextmanager
    def cold(self) -> Iterator[None]:
        """No request that begins meanwhile goes on from another one's text: for comparisons."""
        prefix_cache, self.scheduler.prefix_cache = self.prefix_cache, None
        try:
            yield
        finally:
            self.scheduler.prefix_cache = prefix_cache

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        speculation: SpeculationConfig | None = None,
        dtype: str = "auto",
        device: str = "auto",
        threads: int | None = None,
        cache_tokens: int | None = None,
        native: str | None = None,
        max_batch: int = 8,
        draft_rows: int = MAX_STEP_ROWS,
        step_rows: int = MAX_STEP_ROWS,
        prefill_rows: int = PREFILL_ROWS,
        prefix_cache: bool = True,
    ) -> "Engine":
        """Load `model` (a folder, a hub id or an embedded name) and an engine over it. Raises `UserError` kinds."""
        target = load_target(
            model, dtype=dtype, device=device, threads=threads, cache_tokens=cache_tokens, native=native
        )
        return cls(
            target,
            speculation=speculation,
            max_batch=max_batch,
            draft_rows=draft_rows,
            step_rows=step_rows,
            prefill_rows=prefill_rows,
            prefix_cache=prefix_cache,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        speculation: SpeculationConfig | Sequence[SpeculationConfig] | None = None,
        *,
        priority: int = 0,
    ) -> list[RequestOutput]:
        """Finish every prompt; outputs in prompt order, a prompt's `n` continuations next to each other.

        One `sampling` and one `speculation` serve all prompts, or a sequence gives each its own. Where several callers
        share the engine, requests of a higher `priority` go first.
        Raises `PromptError`, `ConfigError` or `SlotsError` before anything runs.
        """
        outputs: dict[tuple[int, int], RequestOutput] = {}
        for _ in self.run(self.submit(prompts, sampling, speculation, priority), outputs):
            pass
        return [outputs[place] for place in sorted(outputs)]

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        speculation: SpeculationConfig | Sequence[SpeculationConfig] | None = None,
        *,
        priority: int = 0,
    ) -> Iterator[TokenEvent | RequestOutput]:
        """As `generate`, but yields a `TokenEvent` for every step of a request and its `RequestOutput` at its end.

        Closing the iterator early cancels what still runs.
        """
        outputs: dict[tuple[int, int], RequestOutput] = {}
        # Closed by name: Python 3.12.3 leaves a generator inside a closed one as it was.
        with closing(self.run(self.submit(prompts, sampling, speculation, priority), outputs)) as events:
            for event in events:
                yield event
                if event.finish_reason:
                    yield outputs[event.index, event.sample]

    def submit(self, prompts, sampling, speculation, priority: int = 0) -> list[Running]:
        """Check every prompt and queue its requests; nothing is queued when one is refused."""
        whole("priority", priority, *PRIORITIES)
        texts = [prompts] if is_one(prompts) else list(prompts)
        params = spread(sampling or SamplingParams(), len(texts), SamplingParams, "sampling")
        configs = spread(speculation or self.speculation, len(texts), SpeculationConfig, "speculation")
        self.forget_spare_drafters()
        self.know_costs([config for config in dict.fromkeys(configs) if config.adaptive])
        queued = len(self.scheduler.running) + len(self.scheduler.waiting) + sum(param.n for param in params)
        beside = min(queued, self.scheduler.max_batch)
        requests = [
            self.prepare(self.request(text, param, config, sample), index, sample, beside)
            for index, (text, param, config) in enumerate(zip(texts, params, configs, strict=True))
            for sample in range(param.n)
        ]
        for running in requests:
            running.priority = priority
        self.scheduler.submit(requests)
        for running in requests:
            self.policy.open(running, beside)
        return requests

    def know_costs(self, configs: list[SpeculationConfig]) -> None:
        """Measure what steps cost, with any way to draft that `configs` leave to the policy, once for this engine; and
        read what drafts brought at earlier starts.

        An engine that is busy cannot measure and goes by what its steps have taken.
        """
        if not configs or self.policy.costs is not None:
            return
        if self.scheduler.idle:
            ways = dict.fromkeys(option.speculation for config in configs for option in self.options_of(config))
            costs = ready_costs(self, list(ways), seconds=self.cost_seconds)
        else:
            costs = rough_costs(self.statistics)
        self.policy.costs, self.policy.experience = LiveCosts(costs), self.experiences.read()

    def keep_experience(self, *, now: bool = False) -> None:
        """Write what the policy has learned to disk for the next start; seldom, unless it must be `now`."""
        if self.policy.costs is not None:
            self.experiences.write(self.policy.experience, now=now)

    def request(self, prompt: Prompt, params: SamplingParams, config: SpeculationConfig, sample: int) -> Request:
        tokens, context = self.encode(prompt), self.target.context_length
        require(
            len(tokens) < context,
            f"the prompt has {len(tokens)} tokens; the context of {self.target.name} holds {context}, output included",
            PromptError,
        )
        room = min(params.max_new_tokens, context - len(tokens))
        bounded = replace(params, max_new_tokens=room, min_new_tokens=min(params.min_new_tokens, room))
        seed = params.seed if params.seed is not None else secrets.randbits(62)
        return Request(prompt=tokens, params=bounded, speculation=config, seed=(seed + sample) % 2**63)

    def prepare(self, request: Request, index: int, sample: int, beside: int = 1) -> Running:
        """Everything that serves a request, one of `beside` at hand.

        Raises `ConfigError` for parameters the vocabulary cannot meet."""
        tokenizer, vocabulary = self.target.tokenizer, self.target.vocabulary
        bad = self.bad_word_tokens(request.params)
        options = self.options_of(request.speculation, guided=request.params.guided is not None)
        return Running(
            request=request,
            index=index,
            sample=sample,
            sampler=RequestSampler(
                request.params,
                seed=request.seed,
                prompt=request.prompt,
                vocabulary=vocabulary,
                bad_words=bad,
                grammar=grammar_for(request.params, tokenizer, vocabulary),
            ),
            stopper=Stopper(request.params, vocabulary, Detokenizer(tokenizer) if tokenizer else None),
            rule=rules[request.speculation.rejection_sample_method],
            options=self.policy.seated(options, request, min(beside, self.scheduler.max_batch)),
        )

    def bad_word_tokens(self, params: SamplingParams) -> list[list[int]]:
        """Token sequences a request must not write. Raises `ConfigError` for words without a tokenizer to read them."""
        tokenizer, words = self.target.tokenizer, params.bad_words
        require(not words or tokenizer is not None, f"bad_words is {words}; the target has no tokenizer to read them")
        return encode_bad_words(words, tokenizer) if words else []

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt. Raises `PromptError` for an empty one or ids outside the vocabulary."""
        if isinstance(prompt, str):
            require(self.target.tokenizer is not None, "the target has no tokenizer; give token ids", PromptError)
            require(prompt != "", "the prompt is empty; give at least one character", PromptError)
            prompt = self.target.tokenizer(prompt)["input_ids"]
        tokens, size = list(prompt), self.target.vocabulary.size
        require(bool(tokens), "the prompt has no tokens; give at least one", PromptError)
        bad = [token for token in tokens if not 0 <= token < size]
        require(not bad, f"the prompt holds token {bad[:1]}; ids must be from 0 to {size - 1}", PromptError)
        return tokens

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation in the tokenizer's chat template. Raises `PromptError` when it has none."""
        tokenizer = self.target.tokenizer
        has = tokenizer is not None and tokenizer.chat_template
        require(bool(has), f"{self.target.name} has no chat template; give a plain prompt", PromptError)
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def drafter_for(self, config: SpeculationConfig) -> Drafter:
        """The drafter `config` asks for, made once for all configs that differ only in what a request may choose."""
        key = config.drafter_key
        if key not in self.drafters:
            self.drafters[key] = make_drafter(key, self.target)
        return self.drafters[key]

    def options_of(self, config: SpeculationConfig, *, guided: bool = False) -> tuple[Option, ...]:
        """Ways to draft by `config` for a request that a grammar guides or not, looked up once.

        Raises `ConfigError` for a key a drafter would pass over.
        """
        make = partial(self.made_options, config, guided)
        if config.prediction is not None:
            return make()  # a text of one request: not worth remembering
        return self.options.recall((config, guided), make)

    def made_options(self, config: SpeculationConfig, guided: bool) -> tuple[Option, ...]:
        options = options_for(config, self.target, self.drafter_for, guided=guided)
        for option in options:
            require_able(option.drafter, option.speculation)
        return options

    def forget_spare_drafters(self) -> None:
        """Let drafters go that nobody uses, but for the last of them: callers may ask for very many."""
        open_ones = [*self.scheduler.running, *self.scheduler.waiting]
        used = [self.options_of(self.speculation), *(running.options for running in open_ones)]
        forget_spare(self.drafters, self.options, used)

    def run(self, requests: list[Running], outputs: dict[tuple[int, int], RequestOutput]) -> Iterator[TokenEvent]:
        """Step until `requests` are finished, filling `outputs`; what is left when the caller stops is cancelled.

        Raises what made one of them fail.
        """
        try:
            while not all(running.request.finished for running in requests):
                for running, event, output in self.step(isolate=False):
                    if running.fault is not None and running in requests:
                        raise running.fault
                    if output is not None:
                        outputs[output.index, output.sample] = output
                    yield event
        finally:
            self.cancel([running for running in requests if not running.request.finished])
        self.keep_experience()

    def step(self, *, isolate: bool = True) -> list[tuple[Running, TokenEvent, RequestOutput | None]]:
        """One packed forward for everybody: what each request that decided has written, with its output at its end.

        A request that cannot be served ends with an error, alone. Where a step fails as a whole it is undone, and its
        requests run one by one in the next steps until those that fail are found; without `isolate` it raises.
        """
        self.scheduler.admit()
        batch = self.quarantine.admitted(self.scheduler.next_batch())
        try:
            self.run_step(batch)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the grammar library is no Exception
            self.undo(batch)
            if not isolate:
                raise
            log_fault(logger, f"a step of {len(batch)} requests failed", error)
            for work in self.quarantine.caught(batch):
                work.event = failure(work.running, error)
        else:
            self.quarantine.cleared(batch)
        written = [(work.running, work.event) for work in batch if work.event is not None]
        return [(running, event, self.finish(running) if event.finish_reason else None) for running, event in written]

    def run_step(self, batch: list[Work]) -> None:
        times = [self.clock()]
        pool = self.target.pool
        step.place_chunks(batch, pool)
        times.append(self.clock())
        self.policy.draft(batch, pool)
        times.append(self.clock())
        plan = step.plan_of(batch, pool.device)
        times.append(self.clock())
        logits, states = self.target.forward(plan, step.wanted_features(batch))
        times.append(self.clock())
        step.share_features(batch, plan, states)
        step.verify(batch, logits, plan.choice)
        step.share_successors(batch)
        self.commit(batch)
        times.append(self.clock())
        share_time(batch, times)
        drafting = times[2] - times[1]
        self.policy.learn(batch, draft=drafting, rest=times[-1] - times[0] - drafting)

    def commit(self, batch: list[Work]) -> None:
        """Edit slot tables, write tokens, tell drafters."""
        for work in batch:
            self.target.pool.keep(work.running.table, step.kept_slots(work))
            work.running.request.computed = len(work.running.table)
            if work.verdict is not None:
                work.event = written_or_failed(work)
        step.observe(batch)
        self.share(batch)

    def share(self, batch: list[Work]) -> None:
        """Let later requests use the prompts that this step has computed the last of."""
        for work in batch:
            if self.prefix_cache is not None and work.event and work.chunk > 1 and not work.running.request.finished:
                self.prefix_cache.share(work.running)

    def undo(self, batch: list[Work]) -> None:
        """Free what a failed step has taken, where it was not committed."""
        for work in batch:
            if work.event is None:
                self.target.pool.keep(work.running.table, [])

    @property
    def statistics(self) -> SpeculationStatistics:
        """Counts over all requests so far."""
        open_ones = [*self.scheduler.running, *self.scheduler.waiting]
        return total([self.ended, *(running.request.statistics for running in open_ones)])

    def finish(self, running: Running) -> RequestOutput:
        """Close a finished request."""
        self.drop(running)
        return output_of(running)

    def end(self, running: Running, reason: str) -> RequestOutput:
        """End a waiting or running request before its time, for a reason such as timeout; what it has written stays."""
        running.request.finish_reason = reason
        running.text += running.stopper.rest()
        return self.finish(running)

    def cancel(self, requests: list[Running]) -> None:
        """Drop requests that wait or run, freeing their slots."""
        for running in requests:
            self.drop(running)

    def drop(self, running: Running) -> None:
        """Forget a request that has ended or was cancelled, and free its slots."""
        self.scheduler.finish(running)  # first: the prefix cache takes over what drafters know of the text
        for drafter in running.drafters:
            drafter.close(running.request)
        self.policy.close(running.request)  # completes its statistics
        self.ended = total([self.ended, running.request.statistics])

    def start_over(self, running: Running) -> None:
        """A request has lost its cache slots: what its drafters keep under them is gone too."""
        for drafter in running.drafters:
            drafter.close(running.request)
        self.policy.start_over(running.request)


def require_able(drafter: Drafter, config: SpeculationConfig) -> None:
    """Raise `ConfigError` for a key the drafter would pass over."""
    needs, name = drafter.needs, config.method
    fixed, sampled = config.speculative_token_tree is not None, config.draft_sample_method == "probabilistic"
    require(needs.fixed_trees or not fixed, f"method {name} drafts no fixed trees; leave out speculative_token_tree")
    require(
        needs.prediction or config.prediction is None,
        f"method {name} does not draft from a prediction; use method prediction or auto",
    )
    require(
        not needs.prediction or needs.drafters or config.prediction is not None,
        f"method {name} drafts from a text you expect in the answer: give it as prediction",
    )
    require(
        needs.drafters or not config.drafters,
        f"drafters is {config.drafters!r}, and method {name} asks no others; use cascade, merged or auto",
    )
    require(
        needs.samples or not sampled,
        f"method {name} has no law to sample drafts from; draft_sample_method 'probabilistic' is for those that have",
    )


def is_one(prompts) -> bool:
    """Whether `prompts` is a single prompt: a string or a sequence of token ids."""
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))


def spread(values, count: int, kind: type, name: str) -> list:
    """One value for each of `count` prompts. Raises `PromptError` when a sequence has another length."""
    if isinstance(values, kind):
        return [values] * count
    require(len(values) == count, f"{len(values)} {name} values were given for {count} prompts", PromptError)
    return list(values)
