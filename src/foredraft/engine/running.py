"""A request inside the engine, with everything that serves it."""

from dataclasses import dataclass, field

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.request import Request
from foredraft.drafters.drafter import Drafter
from foredraft.model.slot_pool import SlotTable
from foredraft.sampling.request_sampler import RequestSampler
from foredraft.sampling.stopping import Stopper
from foredraft.verification.verifier import Rule


@dataclass(kw_only=True, eq=False)
class Running:
    """One request from its submission to its end.

    Attributes:
        request: What was asked and what is written.
        index, sample: Which prompt of the call it serves, which of its `n` continuations.
        sampler, stopper, rule, drafter: Who chooses its tokens, ends it, accepts its drafts and makes them.
        table: Its cache slots, once it is admitted.
        text: Text released so far.
        sources: The drafter of each written token, none where the target chose it itself.
        started, first_token: When it was admitted and when it wrote its first token, by `perf_counter`.
    """

    request: Request
    index: int
    sample: int
    sampler: RequestSampler
    stopper: Stopper
    rule: Rule
    drafter: Drafter
    table: SlotTable | None = None
    text: str = ""
    sources: list[str | None] = field(default_factory=list)
    started: float = 0.0
    first_token: float | None = None


@dataclass(kw_only=True, eq=False)
class Work:
    """One request's share of a step.

    Attributes:
        running: The request.
        chunk: Pending tokens computed in this step.
        chunk_slots: Their cache slots.
        tree: Its draft; empty where nothing was drafted.
        node_slots: Cache slots of the draft's nodes.
        features: The target's hidden states of all rows that the drafter needs, [rows, features x hidden], if any.
    """

    running: Running
    chunk: int
    chunk_slots: list[int] = field(default_factory=list)
    tree: DraftTree = field(default_factory=DraftTree)
    node_slots: list[int] = field(default_factory=list)
    features: Tensor | None = None

    @property
    def decides(self) -> bool:
        """Whether this step reaches the request's last known token, so that a new one is chosen."""
        return self.chunk == self.running.request.pending

    @property
    def logit_rows(self) -> int:
        return len(self.tree) + 1 if self.decides else 0
