"""A request inside the engine, with everything that serves it."""

from dataclasses import dataclass, field
from functools import cached_property

from torch import Tensor

from foredraft.core.draft_tree import NO_DRAFT, DraftTree
from foredraft.core.outcome import TokenLogprobs, Verdict
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter
from foredraft.drafters.growth import FREE, Growth
from foredraft.engine.output import TokenEvent
from foredraft.engine.way import Way, way_of
from foredraft.model.capture import States
from foredraft.model.slot_pool import SlotTable
from foredraft.sampling.request_sampler import RequestSampler
from foredraft.sampling.stopping import Stopper
from foredraft.verification.verifier import Rule


@dataclass(frozen=True)
class Option:
    """One way to draft: who does it and by which config."""

    drafter: Drafter
    speculation: SpeculationConfig

    @cached_property
    def way(self) -> Way:
        """What a policy goes by, made once: every request asks for it."""
        return way_of(self.speculation, self.drafter)


@dataclass(kw_only=True, eq=False)
class Running:
    """One request from its submission to its end.

    Attributes:
        request: What was asked and what is written.
        index, sample: Which prompt of the call it serves, which of its `n` continuations.
        sampler, stopper, rule: Who chooses its tokens, ends it and accepts its drafts.
        options: Ways to draft that a policy may choose from in each step; one where its speculation is fixed.
        table: Its cache slots, once it is admitted.
        text: Text released so far.
        sources: The drafter of each written token, none where the target chose it itself.
        priority: Requests of a higher one go first.
        rank: Its place among all requests, the smallest first: the priority turned round, then its number of arrival.
        cached: Tokens of its prompt that the prefix cache held when it was first admitted.
        submitted, started, first_token: When it was queued, when it was first admitted and when it wrote its first
            token, by `perf_counter`.
        prompt_logprobs: Those of the prompt computed so far, where its parameters ask for them.
        fault: What it failed with, where it could not be served.
    """

    request: Request
    index: int
    sample: int
    sampler: RequestSampler
    stopper: Stopper
    rule: Rule
    options: tuple[Option, ...]
    table: SlotTable | None = None
    text: str = ""
    sources: list[str | None] = field(default_factory=list)
    priority: int = 0
    rank: tuple[int, int] = (0, 0)
    cached: int = 0
    submitted: float = 0.0
    started: float = 0.0
    first_token: float | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    fault: BaseException | None = None

    @cached_property
    def drafters(self) -> list[Drafter]:
        """Everybody who may draft for it, each once."""
        return list({id(option.drafter): option.drafter for option in self.options}.values())

    @cached_property
    def told(self) -> list[Drafter]:
        """Those of them that are told of every step."""
        return [drafter for drafter in self.drafters if drafter.needs.told]

    @cached_property
    def draft_slots(self) -> int:
        """Most slots that making a draft takes."""
        return max(option.speculation.scratch_nodes + option.drafter.needs.scratch for option in self.options)

    @cached_property
    def wanted_states(self) -> set[int]:
        """Hidden states that some drafter of the request needs."""
        return {boundary for drafter in self.drafters for boundary in drafter.needs.features}

    @cached_property
    def wanted_successors(self) -> int:
        """How many likeliest next tokens some drafter of the request needs to be told."""
        return max((drafter.needs.successors for drafter in self.drafters), default=0)

    @cached_property
    def wants_logits(self) -> bool:
        """Whether somebody reads the logits of all its decisions besides who chooses its tokens."""
        return bool(self.wanted_successors) or self.request.params.logprobs is not None


@dataclass(kw_only=True, eq=False)
class Work:
    """One request's share of a step.

    Attributes:
        running: The request.
        chunk: Pending tokens computed in this step.
        decides: Whether this step reaches the request's last known token, so that a new one is chosen.
        chunk_slots: Their cache slots.
        growth: When its draft ends.
        tree: Its draft; empty where nothing was drafted.
        node_slots: Cache slots of the draft's nodes.
        states: The target's hidden states of the whole step by boundary, [T, hidden] each, if its drafters need any.
        start: The request's first row among them.
        logits: The target's raw logits of the root and of each node, [N + 1, V], where it decides; none where the
            forward has chosen its tokens and nobody else wants them.
        verdict: What was accepted, where it decides.
        successors: The target's likeliest next tokens after the root and each node, as many as its drafters need.
        event: What it has written.
    """

    running: Running
    chunk: int
    decides: bool = field(init=False)
    chunk_slots: list[int] = field(default_factory=list)
    growth: Growth = FREE
    tree: DraftTree = field(default_factory=lambda: NO_DRAFT)
    node_slots: list[int] = field(default_factory=list)
    states: States = field(default_factory=dict)
    start: int = 0
    logits: Tensor | None = None
    verdict: Verdict | None = None
    successors: list[list[int]] | None = None
    event: TokenEvent | None = None

    def __post_init__(self) -> None:
        self.decides = self.chunk == self.running.request.pending

    @property
    def needs_no_law(self) -> bool:
        """Whether its draft is judged by tokens alone, or there is none."""
        return not (self.running.rule.needs_laws and self.tree.guesses)

    def let_go(self) -> None:
        """Nobody looks at what the target said any more: it is large, and the work may be remembered for a while."""
        self.logits, self.states, self.successors = None, {}, None

    @property
    def path(self) -> list[int]:
        """Accepted nodes."""
        return self.verdict.path if self.verdict else []

    @property
    def written(self) -> list[int]:
        """Tokens that the step has added, or would have, had nothing ended the text before."""
        return [self.tree.tokens[node] for node in self.path] + [self.verdict.token] if self.verdict else []

    @property
    def decision_rows(self) -> int:
        """Rows a decision reads: the root's and each node's."""
        return len(self.tree) + 1 if self.decides else 0

    @property
    def choice_logits(self) -> Tensor | None:
        """Logits of the rows that choose a token: the root's and each guess's; probes choose none."""
        return self.logits[: len(self.logits) - self.tree.probes] if self.tree.probes else self.logits

    @property
    def logit_rows(self) -> int:
        """Its last rows, of which logits are wanted: those of a decision, or all where the prompt is to be scored."""
        running, request = self.running, self.running.request
        if request.params.prompt_logprobs is not None and len(running.prompt_logprobs) < len(request.prompt) - 1:
            return self.chunk + len(self.tree)
        return self.decision_rows
